#include "threads.h"

#include <chrono>
#include <sched.h>
#include <stdexcept>
#include <unistd.h>

#include "float_mode.h"

namespace unspool {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker spins for the next task before it sleeps: longer than the gap between two steps
// of one generation, shorter than anything a person or a power meter would notice.
constexpr auto kSpin = std::chrono::microseconds(100);
// How many pauses between looks at the clock.
constexpr int kPausesPerLook = 64;

// Spins until done() holds; false when it does not within kSpin.
template <class Done>
bool spin(const Done& done) {
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; i++) {
      if (done()) return true;
      pause();
    }
  } while (Clock::now() < deadline);
  return done();
}

// Waits until done() holds, giving the core away when that takes long, or at once where the worker that is waited
// for was last seen on this very core: beside other busy processes two workers may share one, and spinning then
// keeps it from the one that has work.
template <class Done>
void wait_until(const Done& done, bool same_core) {
  if (same_core ? done() : spin(done)) return;
  while (!done()) sched_yield();
}

}  // namespace

Pool::Pool(int threads) : size_(threads), owner_(getpid()) {
  if (threads < 1) throw std::invalid_argument("a pool needs at least one thread");
  arrived_ = std::make_unique<Epoch[]>(size_);
  finished_ = std::make_unique<Epoch[]>(size_);
  cores_ = std::make_unique<Core[]>(size_);
  try {
    for (int worker = 1; worker < size_; worker++) workers_.emplace_back([this, worker] { serve(worker); });
  } catch (...) {  // no more threads: those that run would end the process if they were not joined
    stop();
    throw;
  }
}

Pool::~Pool() {
  if (getpid() != owner_) {  // a forked child: these threads are the parent's
    for (auto& worker : workers_) worker.detach();
    return;
  }
  stop();
}

void Pool::stop() {
  quit_ = true;
  announce(started_.load(std::memory_order_relaxed) + 1);
  for (auto& worker : workers_) worker.join();
}

// Sequentially consistent: libstdc++ looks for sleepers right after the store, and a store that is still on its
// way then lets a worker go to sleep on the old epoch for good.
void Pool::announce(uint32_t epoch) {
  started_.store(epoch, std::memory_order_seq_cst);
  started_.notify_all();
}

void Pool::run_erased(Erased task, const void* context) {
  if (getpid() != owner_) {
    throw std::runtime_error(
        "this process was forked from one that had loaded a model, and its compute threads stayed there; "
        "load the model after the fork, or start workers with the 'spawn' method");
  }
  std::lock_guard<std::mutex> one_caller(callers_);
  task_ = task;
  context_ = context;
  const uint32_t epoch = started_.load(std::memory_order_relaxed) + 1;
  note_core(0);
  if (size_ > 1) announce(epoch);
  {
    const FloatMode mode;
    task(context, 0);
  }
  for (int worker = 1; worker < size_; worker++) {
    wait_until([&] { return finished_[worker].value.load(std::memory_order_acquire) == epoch; }, share_core(0, worker));
  }
}

void Pool::serve(int worker) {
  const FloatMode mode;  // a thread inherits its maker's
  uint32_t epoch = 0;
  for (;;) {
    const auto next_is_there = [&] { return started_.load(std::memory_order_acquire) != epoch; };
    if (!spin(next_is_there)) {
      while (!next_is_there()) started_.wait(epoch, std::memory_order_acquire);
    }
    epoch++;
    if (quit_) return;
    note_core(worker);
    task_(context_, worker);
    finished_[worker].value.store(epoch, std::memory_order_release);
  }
}

void Pool::barrier(int worker) {
  if (size_ == 1) return;
  const uint32_t epoch = arrived_[worker].value.load(std::memory_order_relaxed) + 1;
  note_core(worker);
  arrived_[worker].value.store(epoch, std::memory_order_release);
  for (int other = 0; other < size_; other++) {
    // Another worker may already be one barrier ahead, never two.
    const auto is_there = [&] {
      return static_cast<int32_t>(arrived_[other].value.load(std::memory_order_acquire) - epoch) >= 0;
    };
    wait_until(is_there, other != worker && share_core(worker, other));
  }
}

void Pool::note_core(int worker) { cores_[worker].value.store(sched_getcpu(), std::memory_order_relaxed); }

bool Pool::share_core(int one, int other) const {
  return cores_[one].value.load(std::memory_order_relaxed) == cores_[other].value.load(std::memory_order_relaxed);
}

}  // namespace unspool
