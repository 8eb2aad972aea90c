"""Second implementations, slow and plain, to which tests hold the library's."""
