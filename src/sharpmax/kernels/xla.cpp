// The kernels as one handler of XLA's foreign function interface, which JAX calls. Only its C interface is used: its versions
// stay compatible, so one library serves many releases of JAX. Without the header, that is, without jaxlib, there is no handler.
#if __has_include("xla/ffi/api/c_api.h")

#include "xla/ffi/api/c_api.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "sharpmax.h"

namespace {

// The calls as JAX sends them: two numbers, and the structs of sharpmax.h. In place of an address they have the number of a buffer,
// arguments first, counted from 1; 0 is null.
struct Header {
  int64_t function;
  const int32_t* first_key; // the position of key 0, if it is known only when the call runs
};
struct Statistics {
  sharpmax_problem problem;
  sharpmax_rows rows;
};
struct Forward {
  sharpmax_problem problem;
  sharpmax_policy policy;
  sharpmax_results results;
};
struct RowGradient {
  sharpmax_problem problem;
  sharpmax_upstream upstream;
  sharpmax_moments moments;
};
struct Backward {
  sharpmax_problem problem;
  sharpmax_upstream upstream;
  sharpmax_terms terms;
  sharpmax_gradients gradients;
};

struct Buffer {
  const XLA_FFI_Buffer* described;
  int64_t elements, bytes; // of one problem
};

int64_t width_of(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED: return 1;
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16: return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_F32: return 4;
    case XLA_FFI_DataType_F64: return 8;
    default: return 0;
  }
}

struct Frame {
  std::vector<Buffer> buffers;
  int64_t problems = 1; // vmap puts axes in front of all buffers
  int64_t threads = 0;

  explicit Frame(const XLA_FFI_CallFrame& frame) {
    for (int64_t n = 0; n < frame.args.size; ++n) add(frame.args.args[n]);
    for (int64_t n = 0; n < frame.rets.size; ++n) add(frame.rets.rets[n]);
    const XLA_FFI_Buffer& query = *buffers.at(0).described; // the first argument of every call, with four axes
    for (int64_t axis = 0; axis + 4 < query.rank; ++axis) problems *= query.dims[axis];
    for (Buffer& buffer : buffers) {
      buffer.elements = problems ? buffer.elements / problems : 0;
      buffer.bytes = buffer.elements * width_of(buffer.described->dtype);
    }
    if (frame.api->struct_size > offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads)) {
      XLA_FFI_ThreadPool_NumThreads_Args args{XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, frame.ctx, &threads};
      if (XLA_FFI_Error* error = frame.api->XLA_FFI_ThreadPool_NumThreads(&args)) {
        XLA_FFI_Error_Destroy_Args destroy{XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
        frame.api->XLA_FFI_Error_Destroy(&destroy);
        threads = 0; // there is no pool: as many as the process may use
      }
    }
  }

 private:
  void add(const void* given) {
    const auto* described = static_cast<const XLA_FFI_Buffer*>(given);
    int64_t elements = 1;
    for (int64_t axis = 0; axis < described->rank; ++axis) elements *= described->dims[axis];
    buffers.push_back({described, elements, 0});
  }
};

// Turns numbers of buffers into addresses, for one of several problems.
struct Placing {
  const Frame& frame;
  int64_t problem;

  const Buffer* find(const void* number) const {
    const auto found = reinterpret_cast<uintptr_t>(number);
    return found ? &frame.buffers.at(found - 1) : nullptr;
  }
  template <class Number> void operator()(Number*& pointer) const {
    const Buffer* buffer = find(pointer);
    pointer = buffer ? reinterpret_cast<Number*>(static_cast<char*>(buffer->described->data) + problem * buffer->bytes) : nullptr;
  }
  template <class... More> void all(More&... pointers) const { ((*this)(pointers), ...); }

  void place(sharpmax_problem& to) const {
    all(to.query.data, to.key.data, to.value.data, to.mask.data, to.sink);
    to.threads = frame.threads;
  }
  void place(sharpmax_rows& to) const { all(to.maximum, to.mass, to.moment, to.count); }
  void place(sharpmax_upstream& to) const {
    all(to.gradient.data, to.output.data, to.beta, to.logmass, to.maximum, to.of_logmass);
  }
};

int call(Statistics& given, const Placing& placing) {
  placing.place(given.problem);
  placing.place(given.rows);
  return sharpmax_statistics(&given.problem, &given.rows);
}

int call(Forward& given, const Placing& placing) {
  placing.place(given.problem);
  placing.place(given.results.rows);
  placing.all(given.policy.beta, given.results.output.data, given.results.beta, given.results.logmass);
  // JAX has double precision only if it is asked for.
  std::vector<double> parameters;
  const Buffer* single = placing.find(given.policy.parameters);
  if (single && single->described->dtype == XLA_FFI_DataType_F32) {
    const float* from = static_cast<const float*>(single->described->data) + placing.problem * single->elements;
    parameters.assign(from, from + single->elements);
    given.policy.parameters = parameters.data();
  } else {
    placing(given.policy.parameters);
  }
  return sharpmax_forward(&given.problem, &given.policy, &given.results);
}

int call(RowGradient& given, const Placing& placing) {
  placing.place(given.problem);
  placing.place(given.upstream);
  placing.all(given.moments.by_beta, given.moments.mean, given.moments.variance);
  return sharpmax_row_gradient(&given.problem, &given.upstream, &given.moments);
}

int call(Backward& given, const Placing& placing) {
  placing.place(given.problem);
  placing.place(given.upstream);
  placing.all(given.terms.a0, given.terms.c0, given.terms.a1, given.terms.c1);
  placing.all(given.gradients.query.data, given.gradients.key.data, given.gradients.value.data);
  placing.all(given.gradients.mask, given.gradients.sink, given.gradients.beta);
  return sharpmax_backward(&given.problem, &given.upstream, &given.terms, &given.gradients);
}

template <class Call> int call_all(const XLA_FFI_Array& words, const Frame& frame) {
  struct {
    Header header;
    Call call;
  } given;
  if (words.size * sizeof(int64_t) != sizeof(given)) return SHARPMAX_INVALID;
  for (int64_t problem = 0; problem < frame.problems; ++problem) {
    const Placing placing{frame, problem};
    std::memcpy(&given, words.data, sizeof(given));
    placing(given.header.first_key);
    if (given.header.first_key) given.call.problem.offset -= *given.header.first_key;
    if (const int status = call(given.call, placing)) return status;
  }
  return SHARPMAX_OK;
}

int execute(const XLA_FFI_CallFrame& given) {
  if (given.attrs.size != 1 || given.attrs.types[0] != XLA_FFI_AttrType_ARRAY) return SHARPMAX_INVALID;
  const auto& words = *static_cast<const XLA_FFI_Array*>(given.attrs.attrs[0]);
  if (words.dtype != XLA_FFI_DataType_S64 || words.size == 0) return SHARPMAX_INVALID;
  const Frame frame(given);
  switch (*static_cast<const int64_t*>(words.data)) {
    case 0: return call_all<Statistics>(words, frame);
    case 1: return call_all<Forward>(words, frame);
    case 2: return call_all<RowGradient>(words, frame);
    case 3: return call_all<Backward>(words, frame);
    default: return SHARPMAX_INVALID;
  }
}

} // namespace

extern "C" SHARPMAX_EXPORT XLA_FFI_Error* sharpmax_xla(XLA_FFI_CallFrame* frame) {
  // Before the first call, XLA asks for the version of the interface.
  if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start)->metadata;
    // What is used here has been there from the start, so an older XLA than that of the header will do.
    const int minor = std::min(XLA_FFI_API_MINOR, frame->api->api_version.minor_version);
    metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, minor};
    metadata.traits = 0;
    return nullptr;
  }
  int status = SHARPMAX_FAILED;
  try {
    status = execute(*frame);
  } catch (...) {
  }
  if (status == SHARPMAX_OK) return nullptr;
  const std::string message = "sharpmax: the CPU attention failed (status " + std::to_string(status) + ")";
  XLA_FFI_Error_Create_Args args{XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, message.c_str(), XLA_FFI_Error_Code_INTERNAL};
  if (status == SHARPMAX_NO_MEMORY) {
    args.message = "sharpmax: no memory for the CPU attention";
    args.errc = XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
  }
  return frame->api->XLA_FFI_Error_Create(&args);
}

#endif
