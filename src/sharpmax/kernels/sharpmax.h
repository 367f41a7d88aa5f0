/* The C interface of sharpmax's CPU kernels: exact softmax attention in which every row has its own inverse temperature beta.
 *
 * The library knows no framework. A caller describes its arrays by addresses and strides, owns all memory, and gets a status.
 * Calls may come from several threads at once. Results are bit-identical on repetition with as many threads.
 *
 * Arrays with four axes are [batch, head, row, column]. The logit of query i and key j is e = scale q.k, then
 * softcap tanh(e / softcap), then + mask; a query at position p = i + offset sees the keys from p - left to p + right that the
 * mask does not hide. Query head h reads key head h / (query_heads / key_heads). A row that sees nothing gives zeros.
 *
 * Two types of numbers appear. `type` is that of query, key, value, output and their gradients. The "row type" is that of
 * everything with one number per row, of the sink, and of the gradient of the mask: double if `type` is SHARPMAX_FLOAT64,
 * otherwise float. Arrays with one number per row are contiguous, [batches, query_heads, queries]. */
#ifndef SHARPMAX_H
#define SHARPMAX_H

#include <stdint.h>

#if defined(_WIN32)
#define SHARPMAX_EXPORT __declspec(dllexport)
#else
#define SHARPMAX_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a struct or the meaning of a field changes. */
#define SHARPMAX_INTERFACE 3

enum sharpmax_type { SHARPMAX_FLOAT32, SHARPMAX_FLOAT64, SHARPMAX_FLOAT16, SHARPMAX_BFLOAT16, SHARPMAX_BOOLEAN };

/* How beta follows from the entropy H and the number n of visible keys of a row, with its columns of parameters:
 *   GIVEN       none                        beta is read from `beta`
 *   CONSTANT    c                           beta = c
 *   RAMPS       b, (knot, slope, width)...  log beta = max(0, b + sum of slope * clip(H - knot, 0, width))
 *   POLYNOMIAL  threshold, guard, c...      beta = max(1, p(h)) for h = H - guard n > threshold, otherwise 1
 *   LENGTH      a                           beta = max(1, a log n)
 *   TARGET      target, limit               beta in [1, limit] solves H(softmax(beta e)) = target
 *   HARD        none                        beta = inf */
enum sharpmax_form {
  SHARPMAX_GIVEN,
  SHARPMAX_CONSTANT,
  SHARPMAX_RAMPS,
  SHARPMAX_POLYNOMIAL,
  SHARPMAX_LENGTH,
  SHARPMAX_TARGET,
  SHARPMAX_HARD
};

enum sharpmax_status { SHARPMAX_OK, SHARPMAX_INVALID, SHARPMAX_NO_MEMORY, SHARPMAX_FAILED };

/* Runs task(context) on `threads` threads at once and returns when all have returned; `flags` is 0. GOMP_parallel of GCC's OpenMP
 * library is such a function: a caller whose own operations run on OpenMP's threads passes it, and these threads serve both. */
typedef void (*sharpmax_parallel)(void (*task)(void*), void* context, unsigned threads, unsigned flags);

/* An array [batch, head, row, column]. Strides are in elements, may be 0, and that of the column must be 1 except in a mask. */
typedef struct sharpmax_array {
  const void* data;
  int64_t batch, head, row, column;
} sharpmax_array;

/* An array [batch, head, row, column] that is written. Rows do not overlap, and columns are adjacent. */
typedef struct sharpmax_writable {
  void* data;
  int64_t batch, head, row, column;
} sharpmax_writable;

/* What determines the logits, the values, and the threads. */
typedef struct sharpmax_problem {
  int64_t batches, query_heads, key_heads, queries, keys, width, value_width;
  int64_t type;      /* enum sharpmax_type, not boolean */
  int64_t mask_type; /* of the mask: boolean (one byte, not 0 is visible) or floating (added; lowest / 2 or less hides) */
  int64_t left, right, offset; /* -1 for left or right means no bound */
  int64_t sink_counted; /* whether the sink is one more key, which counts in H and n and is multiplied by beta */
  int64_t threads;      /* at most; 0 for as many as the process may use */
  double scale, softcap; /* a softcap of 0 means none */
  sharpmax_array query;  /* [batches, query_heads, queries, width] */
  sharpmax_array key;    /* [batches, key_heads, keys, width] */
  sharpmax_array value;  /* [batches, key_heads, keys, value_width]; not read for statistics */
  sharpmax_array mask;   /* [batches, query_heads, queries, keys]; data is null if there is none */
  const void* sink;      /* [query_heads], one more logit per row whose value is zero; null if there is none */
  sharpmax_parallel parallel; /* the caller's threads; null for the library's own */
} sharpmax_problem;

/* How to choose beta. */
typedef struct sharpmax_policy {
  int64_t form;              /* enum sharpmax_form */
  int64_t columns;           /* number of parameters per head */
  int64_t stride;            /* from head to head; 0 if all query heads share them */
  const double* parameters;  /* [query_heads or 1, columns] */
  const void* beta;          /* one number per row; read if the form is GIVEN */
} sharpmax_policy;

/* Statistics of the untempered rows. Each may be null if it is not wanted. With d = e - maximum: */
typedef struct sharpmax_rows {
  void* maximum;   /* -inf for a row without keys */
  void* mass;      /* sum of exp(d); the entropy is log(mass) - moment / mass */
  void* moment;    /* sum of d exp(d) */
  int64_t* count;  /* visible keys */
} sharpmax_rows;

/* What the forward pass computes. All but the output may be null if they are not wanted. */
typedef struct sharpmax_results {
  sharpmax_writable output; /* [batches, query_heads, queries, value_width] */
  sharpmax_rows rows;
  void* beta;    /* 1 for a row without keys */
  void* logmass; /* log(sum of exp(beta d), sink included): relative to beta * maximum, so that no digits are lost */
} sharpmax_results;

/* What the gradients start from: that of the output, and what the forward pass gave. */
typedef struct sharpmax_upstream {
  sharpmax_array gradient, output; /* [batches, query_heads, queries, value_width] */
  const void *beta, *logmass, *maximum;
  const void* of_logmass; /* gradient by logmass; null for zero */
} sharpmax_upstream;

/* What the statistics of a row add to the gradient of its logits: exp(d) (a0 + c0 d) + p (a1 + c1 d), where
 * p = softmax(beta e). Of each pair both are given or both are null. */
typedef struct sharpmax_terms {
  const void *a0, *c0, *a1, *c1;
} sharpmax_terms;

/* Per row, all of them: the gradient by beta, and mean and variance of e under softmax(beta e), a counted sink included. */
typedef struct sharpmax_moments {
  void *by_beta, *mean, *variance;
} sharpmax_moments;

/* Gradients, in the type of what they belong to unless it says otherwise. */
typedef struct sharpmax_gradients {
  sharpmax_writable query, key, value;
  void* mask; /* row type, [batches, query_heads, queries, keys], by the logits after the softcap; null if it is not wanted */
  void* sink; /* row type, [query_heads], summed over rows; null if it is not wanted */
  void* beta; /* row type, one per row; null if it is not wanted */
} sharpmax_gradients;

/* Statistics of all rows. Reads each key once. */
SHARPMAX_EXPORT int sharpmax_statistics(const sharpmax_problem* problem, const sharpmax_rows* rows);

/* softmax(beta e) V, with beta by the policy. */
SHARPMAX_EXPORT int sharpmax_forward(
    const sharpmax_problem* problem, const sharpmax_policy* policy, const sharpmax_results* results);

/* The gradient by beta, with mean and variance of the logits. */
SHARPMAX_EXPORT int sharpmax_row_gradient(
    const sharpmax_problem* problem, const sharpmax_upstream* upstream, const sharpmax_moments* moments);

/* Gradients at fixed beta, plus what the terms add. */
SHARPMAX_EXPORT int sharpmax_backward(
    const sharpmax_problem* problem, const sharpmax_upstream* upstream, const sharpmax_terms* terms,
    const sharpmax_gradients* gradients);

/* The value of SHARPMAX_INTERFACE with which the library was compiled. */
SHARPMAX_EXPORT int sharpmax_interface(void);

/* The instruction set in use: "avx512_bf16", "avx512", "avx2" or "baseline". The environment variable SHARPMAX_INSTRUCTIONS, read at
 * the first call, may name a lower one than the processor has. */
SHARPMAX_EXPORT const char* sharpmax_instructions(void);

#ifdef __cplusplus
}
#endif

#endif
