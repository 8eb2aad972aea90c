"""Dynamic programmes on chains, trees and junction trees."""
