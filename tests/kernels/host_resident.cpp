// The launch of resident.cu on the host: compiled after host_cuda.h and the kernel itself.

struct Arguments {
  const float *weight, *hidden, *visible, *known;
  float *visible_fields, *hidden_fields, *row_values, *residuals;
  int *num_iters;
  float *scratch;
  int batch, iters;
  float tol;
  int look_every;
};
static Arguments given;

static void with_arguments() {
  const Arguments &a = given;
  resident(a.weight, a.hidden, a.visible, a.known, a.visible_fields, a.hidden_fields, a.row_values, a.residuals,
           a.num_iters, a.scratch, a.batch, a.iters, a.tol, a.look_every);
}

extern "C" int shared_bytes() { return sizeof(Shared); }

extern "C" int launch_on_host(const float *weight, const float *hidden, const float *visible, const float *known,
                              float *visible_fields, float *hidden_fields, float *row_values, float *residuals,
                              int *num_iters, float *scratch, int batch, int iters, float tol, int look_every,
                              unsigned clusters, int order) {
  given = {weight, hidden, visible, known, visible_fields, hidden_fields, row_values, residuals,
           num_iters, scratch, batch, iters, tol, look_every};
  return sizeof(Shared) <= MOST_SHARED && launch(with_arguments, clusters, BLOCKS, THREADS, order);
}
