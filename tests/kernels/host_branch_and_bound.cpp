// The launch of directed.cu on the host, compiled after the kernel: by fibers (host_cuda.h), or in a thread of one lane.

#include <utility>

static void **given;

template <class... Arguments, std::size_t... Places>
static void called(void (*kernel)(Arguments...), std::index_sequence<Places...>) {
  kernel(*static_cast<std::decay_t<Arguments> *>(given[Places])...);
}

template <class... Arguments> static void with_arguments(void (*kernel)(Arguments...)) {
  called(kernel, std::index_sequence_for<Arguments...>());
}

static void run() { with_arguments(branch_and_bound); }

extern "C" int launch_on_host(void **places, unsigned blocks, int order) {
  given = places;
#if LANES == 1
  run();
  return 1;
#else
  return launch(run, 1, blocks, 32, order);
#endif
}
