// The processor's default way with floats, while a task runs: round to nearest, keep subnormal numbers. A library
// may have set another on the caller's thread alone, and workers would then compute other bits than it.
#pragma once
#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unspool {

class FloatMode {
 public:
  FloatMode() : before_(get()) { set(kDefault); }
  ~FloatMode() { set(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  using Word = uint32_t;
  static constexpr Word kDefault = 0x1f80;  // every exception masked, nothing flushed to zero
  static Word get() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kDefault = 0;
  static Word get() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = int;
  static constexpr Word kDefault = 0;
  static Word get() { return 0; }
  static void set(Word) {}
#endif
  Word before_;
};

}  // namespace unspool
