#include "threads.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#endif

namespace sharpmax {
namespace {

std::atomic<bool> is_child{false};
// When the library is loaded, so that no fork is missed.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, [] { is_child = true; });

int64_t available() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
#endif
  return std::max<int64_t>(std::thread::hardware_concurrency(), 1);
}

// What the threads of one call share.
struct Call {
  void (*body)(void*);
  void* context;
  std::mutex mutex;
  std::exception_ptr failure;

  static void run(void* given) noexcept {
    Call& call = *static_cast<Call*>(given);
    try {
      call.body(call.context);
    } catch (...) { // must not leave the threads of others
      const std::lock_guard<std::mutex> lock(call.mutex);
      call.failure = std::current_exception();
    }
  }
};

// Threads that wait for work. They are never joined: a process may end while they wait, and the pool is never destroyed.
class Pool {
 public:
  // Runs the call on this thread and on `helpers` others. If another call has the pool, on this thread alone.
  void run(Call& call, int64_t helpers) {
    std::unique_lock<std::mutex> owner(busy_, std::try_to_lock);
    if (!owner) return Call::run(&call);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (; started_ < helpers; ++started_) std::thread([this] { serve(); }).detach();
      call_ = &call;
      wanted_ = helpers;
    }
    wake_.notify_all();
    Call::run(&call);
    std::unique_lock<std::mutex> lock(mutex_);
    wanted_ = 0; // who has not begun need not: all tasks are taken
    done_.wait(lock, [this] { return running_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return wanted_ > 0; });
      --wanted_;
      ++running_;
      lock.unlock();
      Call::run(call_);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::mutex busy_, mutex_;
  std::condition_variable wake_, done_;
  Call* call_ = nullptr;
  int64_t started_ = 0, wanted_ = 0, running_ = 0;
};

Pool& pool() {
  static Pool* const shared = new Pool;
  return *shared;
}

} // namespace

int64_t threads_for(int64_t wanted) {
  if (is_child) return 1;
  static const int64_t processors = available();
  return wanted > 0 ? wanted : processors;
}

void run_parallel(sharpmax_parallel parallel, int64_t threads, void (*body)(void*), void* context) {
  if (threads <= 1) return body(context);
  Call call{body, context, {}, {}};
  if (parallel)
    parallel(&Call::run, &call, static_cast<unsigned>(threads), 0);
  else
    pool().run(call, threads - 1);
  if (call.failure) std::rethrow_exception(call.failure);
}

} // namespace sharpmax
