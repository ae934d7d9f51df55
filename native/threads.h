// A pool of threads that run one task together, the caller being worker 0.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <sys/types.h>
#include <thread>
#include <vector>

namespace unspool {

// Tells a spinning core that it waits.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class Pool {
 public:
  // Threads in all, the caller included: at least 1. Throws std::system_error where the system has no more.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return size_; }

  // Runs task(worker) on every worker, 0 (this thread) to size() - 1, and returns when all are done.
  // One caller at a time: a second one waits. Throws std::runtime_error in a forked child, whose
  // workers do not exist. The task must not throw.
  template <class Task>
  void run(const Task& task) {
    run_erased([](const void* context, int worker) { (*static_cast<const Task*>(context))(worker); }, &task);
  }

  // Waits, inside a task, until every worker has come to its own same call.
  void barrier(int worker);

 private:
  using Erased = void (*)(const void* context, int worker);
  void run_erased(Erased task, const void* context);
  void announce(uint32_t epoch);
  void stop();
  void serve(int worker);
  void note_core(int worker);
  bool share_core(int one, int other) const;

  // One cache line each, written by one worker and read by the others.
  struct alignas(64) Epoch {
    std::atomic<uint32_t> value{0};
  };

  // Where each worker was last seen.
  struct alignas(64) Core {
    std::atomic<int> value{-1};
  };

  int size_;
  pid_t owner_;
  Erased task_ = nullptr;
  const void* context_ = nullptr;
  bool quit_ = false;
  std::mutex callers_;
  alignas(64) std::atomic<uint32_t> started_{0};
  std::unique_ptr<Epoch[]> arrived_;   // at the current barrier
  std::unique_ptr<Epoch[]> finished_;  // the current task
  std::unique_ptr<Core[]> cores_;
  std::vector<std::thread> workers_;
};

}  // namespace unspool
