// The depth-first branch and bound of directed.py on a GPU: a group of LANES lanes of a warp searches an instance, and
// takes the next instance from a counter when done. Lanes share the labels. The settled parts of the fields, a row for
// each number of decisions, are in shared memory as a triangle: no field of a decided label is read again.
//
// A host's C++ compiler compiles the same source, after definitions of the functions of lanes.

#ifdef __CUDACC__
#define INFINITY __longlong_as_double(0x7ff0000000000000ll)
#define SHARED_DOUBLES(name) extern __shared__ double name[]

__device__ __forceinline__ int lane() { return threadIdx.x % LANES; }
__device__ __forceinline__ unsigned group() {
  return LANES == 32 ? ~0u : ((1u << LANES % 32) - 1) << threadIdx.x % 32 / LANES * LANES;
}
// A barrier of the group, which orders reads and writes of memory.
__device__ __forceinline__ void together() { __syncwarp(group()); }
__device__ __forceinline__ double from_lane(double x, int distance) { return __shfl_xor_sync(group(), x, distance); }
__device__ __forceinline__ int taken(int *counter) {
  const int instance = lane() == 0 ? atomicAdd(counter, 1) : 0;
  return __shfl_sync(group(), instance, 0, LANES);
}
#endif

// Additions of equal pairs: every lane has the same sum to the last bit, and takes the same turns.
__device__ __forceinline__ double sum_of_lanes(double x) {
  for (int distance = LANES / 2; distance; distance /= 2) x += from_lane(x, distance);
  return x;
}

__device__ __forceinline__ double largest_of_lanes(double x) {
  for (int distance = LANES / 2; distance; distance /= 2) x = fmax(x, from_lane(x, distance));
  return x;
}

struct Loss {
  double margin, temperature;
  __device__ __forceinline__ double operator()(double agreement) const {
    const double shortfall = margin - agreement;
    if (temperature == 0) return fmax(shortfall, 0.);
    const double scaled = shortfall / temperature;
    return temperature * (fmax(scaled, 0.) + log1p(exp(-fabs(scaled))));
  }
  __device__ __forceinline__ double least(double known, double field, double undecided) const {
    return (*this)((known == 0 ? fabs(field) : known * field) + undecided);
  }
};

// What a group has of the current instance.
struct Search {
  int labels, cliques, most_parents;
  Loss loss;
  const double *children, *weight;
  const long long *clique_parents, *clique_child;
  double *stack, *known, *spins, *right, *losses;  // shared: fields by decisions; (labels + 1) for each other
  double *undecided;                               // (labels + 1, labels), global
  int *settled;                                    // (cliques), global: decisions after which all parents are known

  __device__ __forceinline__ double &field(int decided, int t) const {
    return stack[decided * labels - decided * (decided + 1) / 2 + t];
  }

  // Lane `lane()` has the label t at every position.
  __device__ __forceinline__ bool is_own(int t) const { return t % LANES == lane(); }

  __device__ void start(const double *fields, const double *given) const {
    if (lane() == 0) spins[labels] = 1, losses[0] = 0;
    for (int t = lane(); t < labels; t += LANES) {
      known[t] = spins[t] = given[t];
      right[t] = INFINITY;
      double first = fields[t], rest = 0;
      undecided[labels * labels + t] = 0;
      for (int j = labels - 1; j >= 0; --j) {
        rest += given[j] == 0 ? fabs(children[j * labels + t]) : 0;
        undecided[j * labels + t] = rest;
        first += given[j] * children[j * labels + t];
      }
      field(0, t) = first;
    }
    for (int c = 0; c < cliques; ++c) {
      const int t = clique_child[c];
      if (!is_own(t)) continue;
      int decisions = 0;
      double term = weight[c];
      for (int i = 0; i < most_parents; ++i) {
        const int parent = clique_parents[c * most_parents + i];
        if (parent == labels) continue;
        term *= given[parent];
        if (given[parent] == 0 && decisions <= parent) decisions = parent + 1;
      }
      settled[c] = decisions;
      for (int j = 0; j < decisions; ++j) undecided[j * labels + t] += fabs(weight[c]);
      if (decisions == 0) field(0, t) += term;
    }
    together();
  }

  // The bound before the first decision; `largest` is the largest loss of a label.
  __device__ double first_bound(double &largest) const {
    double bound = 0, most = 0;
    for (int t = lane(); t < labels; t += LANES) {
      bound += loss.least(known[t], field(0, t), undecided[t]);
      most = fmax(most, fabs(field(0, t)) + undecided[t]);
    }
    largest = loss(-largest_of_lanes(most));
    return sum_of_lanes(bound);
  }

  // The bound after the decision at `position`.
  __device__ double decide(int position) const {
    const int depth = position + 1;
    const double spin = spins[position], total = losses[position] + loss(spin * field(position, position));
    // A known parent's share is part of the first fields.
    const double step = known[position] == 0 ? spin : 0;
    double rest = 0;
    for (int t = lane(); t < labels; t += LANES) {
      if (t < depth) continue;
      field(depth, t) = field(position, t) + step * children[position * labels + t];
      rest += loss.least(known[t], field(depth, t), undecided[depth * labels + t]);
    }
    for (int c = 0; c < cliques; ++c) {
      const int t = clique_child[c];
      if (!is_own(t) || settled[c] != depth) continue;
      double term = weight[c];
      for (int i = 0; i < most_parents; ++i) term *= spins[clique_parents[c * most_parents + i]];
      rest -= loss.least(known[t], field(depth, t), undecided[depth * labels + t]);
      field(depth, t) += term;
      rest += loss.least(known[t], field(depth, t), undecided[depth * labels + t]);
    }
    if (lane() == 0) losses[depth] = total;
    rest = sum_of_lanes(rest);
    together();
    return total + rest;
  }
};

// Insert a complete labelling into the best, behind ties, and return the last of the losses.
__device__ double record(const Search &search, int top_k, double loss, double *losses, long long *labels) {
  int place = top_k - 1;
  while (place > 0 && losses[place - 1] > loss) --place;
  together();
  for (int k = top_k - 1; k > place; --k) {
    if (lane() == 0) losses[k] = losses[k - 1];
    for (int t = lane(); t < search.labels; t += LANES) labels[k * search.labels + t] = labels[(k - 1) * search.labels + t];
  }
  if (lane() == 0) losses[place] = loss;
  for (int t = lane(); t < search.labels; t += LANES) labels[place * search.labels + t] = search.spins[t] > 0;
  together();
  return losses[top_k - 1];
}

// Steps from an instance's table to the next one's are 0 for a table of all instances. `labels` begin as 0 and `losses` as infinity; `undecided` and `settled` have room for each group of the grid.
extern "C" __global__ void branch_and_bound(
    const double *fields, const double *children, long long children_step, const long long *clique_parents,
    const long long *clique_child, int cliques, int most_parents, const double *weight, long long weight_step,
    const double *given, long long known_step, double margin, double temperature, double round_off, double ceiling,
    long long node_limit, int top_k, int batch, int num_labels, double *undecided, int *settled, int *counter,
    long long *labels, double *losses, double *bounds, long long *num_nodes, bool *limited) {
  SHARED_DOUBLES(memory);
  const int of_block = threadIdx.x / LANES, of_grid = blockIdx.x * (blockDim.x / LANES) + of_block;
  const int rows = num_labels + 1, triangle = num_labels * rows / 2;
  double *mine = memory + of_block * (triangle + 4 * rows);
  Search search{num_labels, cliques, most_parents, {margin, temperature}, children, weight, clique_parents, clique_child,
                mine, mine + triangle, mine + triangle + rows, mine + triangle + 2 * rows, mine + triangle + 3 * rows,
                undecided + static_cast<long long>(of_grid) * rows * num_labels,
                settled + static_cast<long long>(of_grid) * cliques};
  for (int instance = taken(counter); instance < batch; instance = taken(counter)) {
    search.children = children + instance * children_step;
    search.weight = weight + instance * weight_step;
    long long *best = labels + static_cast<long long>(instance) * top_k * num_labels;
    double *least = losses + static_cast<long long>(instance) * top_k;
    search.start(fields + static_cast<long long>(instance) * num_labels, given + instance * known_step);
    double largest, bound = search.first_bound(largest);
    const double slack = round_off * largest;
    double threshold = INFINITY, worst = INFINITY, proven = INFINITY;
    long long nodes = 0;
    int position = 0;
    bool left = true, ended = false;
    while (position >= 0) {
      if (nodes >= node_limit && worst < INFINITY) {
        ended = true;
        proven = left ? bound : INFINITY;
        for (int t = 0; t < num_labels; ++t) proven = fmin(proven, search.right[t]);
        break;
      }
      // Nobody reads what was there any more.
      together();
      if (lane() == 0 && left && search.known[position] == 0) {
        const double field = search.field(position, position);
        search.spins[position] = field >= 0 ? 1 : -1;
        search.right[position] = bound - search.loss(fabs(field)) + search.loss(-fabs(field));
      } else if (lane() == 0 && !left) {
        search.spins[position] *= -1;
        search.right[position] = INFINITY;
      }
      together();
      bound = search.decide(position);
      ++nodes;
      if (position == num_labels - 1 && bound < threshold) {
        worst = record(search, top_k, bound, least, best);
        if (worst < INFINITY) threshold = fmin(worst, ceiling) - slack;
      }
      left = position < num_labels - 1 && bound < threshold;
      if (left) ++position;
      else while (position >= 0 && search.right[position] >= threshold) --position;
    }
    if (lane() == 0) {
      num_nodes[instance] = nodes;
      limited[instance] = ended;
      bounds[instance] = fmin(fmin(proven, worst), ceiling);
    }
    together();
  }
}
