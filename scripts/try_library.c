/* Compare a compiled library of the kernels with plain arithmetic in double precision, without Python: for processors that are
 * only emulated here. Prints one line per problem; the exit code is 0 if all agree. For the library of the aarch64 wheel, unpacked
 * into build/aarch64, with QEMU and the C library of Debian's packages qemu-user-static and libc6-arm64-cross:
 *
 *   python -m ziglang cc -target aarch64-linux-gnu.2.28 -O1 -Isrc/sharpmax/kernels scripts/try_library.c \
 *     build/aarch64/sharpmax/kernels/libsharpmax.so -lm -o build/aarch64/try
 *   qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=build/aarch64/sharpmax/kernels build/aarch64/try */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sharpmax.h"
static double rnd(void) {
  static unsigned long long s = 88172645463325252ull;
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return (double)(s >> 11) / 9007199254740992. * 2 - 1;
}
static int worst_fail = 0;
/* type 0 float32, 1 float64, 2 float16, 3 bfloat16 */
static double stored(int type, void* to, long at, double v) {
  if (type == 0) { ((float*)to)[at] = (float)v; return ((float*)to)[at]; }
  if (type == 1) { ((double*)to)[at] = v; return v; }
  if (type == 2) { ((__fp16*)to)[at] = (__fp16)v; return ((__fp16*)to)[at]; }
  float f = (float)v;
  unsigned u;
  memcpy(&u, &f, 4);
  u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
  memcpy(&f, &u, 4);
  ((unsigned short*)to)[at] = (unsigned short)(u >> 16); return f;
}
static double loaded(int type, const void* from, long at) {
  if (type == 0) return ((const float*)from)[at];
  if (type == 1) return ((const double*)from)[at];
  if (type == 2) return ((const __fp16*)from)[at];
  unsigned u = (unsigned)((const unsigned short*)from)[at] << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
/* One problem with H query heads on KH key heads, Q queries, K keys and width W. beta is c, or that of an entropy of 1.5 if c is 0. */
static void one(
    int type, long H, long KH, long Q, long K, long W, int causal, double softcap, double c, double tolerance, int gradients) {
  long size = type == 1 ? 8 : type == 0 ? 4 : 2;
  void *q = malloc(H*Q*W*size), *k = malloc(KH*K*W*size), *v = malloc(KH*K*W*size), *o = malloc(H*Q*W*size), *g = malloc(H*Q*W*size);
  double *dq = malloc(H*Q*W*8), *dk = malloc(KH*K*W*8), *dv = malloc(KH*K*W*8), *dg = malloc(H*Q*W*8);
  double *exact = malloc(H*Q*W*8), *e = malloc(K*8);
  double *gq = calloc(H*Q*W, 8), *gk = calloc(KH*K*W, 8), *gv = calloc(KH*K*W, 8), *ent = malloc(H*Q*8);
  for (long n = 0; n < H*Q*W; ++n) {
    dq[n] = stored(type, q, n, 2*rnd());
    dg[n] = stored(type, g, n, rnd());
  }
  for (long n = 0; n < KH*K*W; ++n) {
    dk[n] = stored(type, k, n, 2*rnd());
    dv[n] = stored(type, v, n, rnd());
  }
  double scale = 1/sqrt((double)W);
  sharpmax_problem p; memset(&p, 0, sizeof p);
  p.batches = 1;
  p.query_heads = H;
  p.key_heads = KH;
  p.queries = Q;
  p.keys = K;
  p.width = p.value_width = W;
  p.type = type;
  p.left = -1;
  p.right = causal ? 0 : -1;
  p.offset = causal ? K - Q : 0;
  p.sink_counted = 1;
  p.threads = 2;
  p.scale = scale;
  p.softcap = softcap;
  sharpmax_array aq = {q, H*Q*W, Q*W, W, 1}, ak = {k, KH*K*W, K*W, W, 1}, av = {v, KH*K*W, K*W, W, 1}, none = {0, 0, 0, 0, 1};
  p.query = aq; p.key = ak; p.value = av; p.mask = none;
  long rows = H*Q; int wide = type == 1; size_t rs = wide ? 8 : 4;
  void *mx = malloc(rows*rs), *ms = malloc(rows*rs), *mo = malloc(rows*rs), *be = malloc(rows*rs), *lm = malloc(rows*rs);
  int64_t* ct = malloc(rows*8);
  double param[1] = {c};
  sharpmax_policy pol = {c > 0 ? SHARPMAX_CONSTANT : SHARPMAX_TARGET, c > 0 ? 1 : 2, 0, param, 0};
  double target[2] = {1.5, 100}; if (c <= 0) pol.parameters = target;
  sharpmax_writable wo = {o, H*Q*W, Q*W, W, 1};
  sharpmax_results r = {wo, {mx, ms, mo, ct}, be, lm};
  int status = sharpmax_forward(&p, &pol, &r);
  double worst = 0, worst_h = 0, worst_target = 0;
  for (long h = 0; h < H; ++h) for (long i = 0; i < Q; ++i) {
    long kh = h / (H/KH), last = causal ? i + K - Q + 1 : K, row = h*Q + i;
    double top = -INFINITY, mass = 0, moment = 0;
    for (long j = 0; j < last; ++j) {
      double s = 0;
      for (long d = 0; d < W; ++d) s += dq[row*W+d]*dk[(kh*K+j)*W+d];
      s *= scale;
      if (softcap > 0) s = softcap*tanh(s/softcap);
      e[j] = s;
      if (s > top) top = s;
    }
    for (long j = 0; j < last; ++j) { double w = exp(e[j]-top); mass += w; moment += w*(e[j]-top); }
    ent[row] = log(mass) - moment/mass;
    double found = wide ? log(((double*)ms)[row]) - ((double*)mo)[row]/((double*)ms)[row] : log(((float*)ms)[row]) - ((float*)mo)[row]/((float*)ms)[row];
    if (fabs(found - ent[row]) > worst_h) worst_h = fabs(found - ent[row]);
    double beta = wide ? ((double*)be)[row] : ((float*)be)[row], total = 0;
    for (long d = 0; d < W; ++d) exact[row*W+d] = 0;
    double m2 = 0;
    for (long j = 0; j < last; ++j) {
      double w = exp(beta*(e[j]-top));
      total += w;
      m2 += w*beta*(e[j]-top);
    }
    if (c <= 0 && ent[row] > 1.5) {
      double t = fabs(log(total) - m2/total - 1.5);
      if (t > worst_target) worst_target = t;
    }
    for (long j = 0; j < last; ++j) {
      e[j] = exp(beta*(e[j]-top))/total;
      for (long d = 0; d < W; ++d) exact[row*W+d] += e[j]*dv[(kh*K+j)*W+d];
    }
    for (long d = 0; d < W; ++d) {
      double diff = fabs(exact[row*W+d] - loaded(type, o, row*W+d));
      if (!(diff <= worst)) worst = diff;
    }
    if (gradients && softcap == 0) {
      double inner = 0; for (long d = 0; d < W; ++d) inner += dg[row*W+d]*exact[row*W+d];
      for (long j = 0; j < last; ++j) {
        double dp = 0;
        for (long d = 0; d < W; ++d) {
          dp += dg[row*W+d]*dv[(kh*K+j)*W+d];
          gv[(kh*K+j)*W+d] += e[j]*dg[row*W+d];
        }
        double de = beta*e[j]*(dp-inner)*scale;
        for (long d = 0; d < W; ++d) {
          gq[row*W+d] += de*dk[(kh*K+j)*W+d];
          gk[(kh*K+j)*W+d] += de*dq[row*W+d];
        } }
    }
  }
  double worst_g = 0;
  if (gradients && softcap == 0) {
    void *oq = malloc(H*Q*W*size), *ok = malloc(KH*K*W*size), *ov = malloc(KH*K*W*size);
    sharpmax_array ag = {g, H*Q*W, Q*W, W, 1}, ao = {o, H*Q*W, Q*W, W, 1};
    sharpmax_upstream up = {ag, ao, be, lm, mx, 0}; sharpmax_terms terms = {0, 0, 0, 0};
    sharpmax_gradients gr = {{oq, H*Q*W, Q*W, W, 1}, {ok, KH*K*W, K*W, W, 1}, {ov, KH*K*W, K*W, W, 1}, 0, 0};
    status |= sharpmax_backward(&p, &up, &terms, &gr);
    for (long n = 0; n < H*Q*W; ++n) worst_g = fmax(worst_g, fabs(gq[n] - loaded(type, oq, n)));
    for (long n = 0; n < KH*K*W; ++n) {
      worst_g = fmax(worst_g, fabs(gk[n] - loaded(type, ok, n)));
      worst_g = fmax(worst_g, fabs(gv[n] - loaded(type, ov, n)));
    }
  }
  int fail = status || !(worst < tolerance) || !(worst_h < (wide ? 1e-12 : 1e-4)) || !(worst_target < 1e-3) || !(worst_g < 20*tolerance);
  worst_fail |= fail;
  printf(
      "type %d heads %ld/%ld %ldx%ldx%ld causal %d softcap %g %s: status %d output %.1e entropy %.1e target %.1e gradients %.1e %s\n",
      type, H, KH, Q, K, W, causal, softcap, c > 0 ? "constant" : "target", status, worst, worst_h, worst_target, worst_g,
      fail ? "WRONG" : "ok");
}
int main(void) {
  printf("interface %d, instructions %s\n", sharpmax_interface(), sharpmax_instructions());
  double tol[] = {1e-5, 1e-12, 2e-3, 1.5e-2};
  for (int type = 0; type < 4; ++type) {
    one(type, 4, 2, 70, 150, 32, 1, 0, 1.5, tol[type], 1);   /* panels */
    one(type, 2, 1, 20, 300, 24, 0, 5, 1.5, tol[type], 0);   /* odd width, softcap */
    one(type, 8, 2, 1, 1100, 64, 0, 0, 2.0, tol[type], 1);   /* decoding */
    one(type, 1, 1, 12, 2048, 40, 0, 0, 1.2, tol[type], 0);  /* keys cut among threads */
    one(type, 2, 2, 64, 200, 16, 0, 0, 0, tol[type], 0);     /* EntropyTarget */
  }
  puts(worst_fail ? "FAILED" : "all agree");
  return worst_fail;
}
