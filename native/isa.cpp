#include "isa.h"

#include <stdexcept>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace unspool {

extern const Kernels portable_kernels;
#if UNSPOOL_HAS_AVX2
extern const Kernels avx2_kernels;
#endif
#if UNSPOOL_HAS_AVXVNNI
extern const Kernels avxvnni_kernels;
#endif
#if UNSPOOL_HAS_AVX512
extern const Kernels avx512_kernels;
#endif

namespace {

#if defined(__x86_64__)
// Not every compiler's __builtin_cpu_supports knows the names of these two.
[[maybe_unused]] bool has_f16c() {  // CPUID leaf 1, ECX bit 29
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 29 & 1u);
}
[[maybe_unused]] bool has_avx_vnni() {  // CPUID leaf 7, subleaf 1, EAX bit 4
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax >> 4 & 1u);
}
#endif

std::vector<const Kernels*> detect() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  [[maybe_unused]] const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#endif
#if UNSPOOL_HAS_AVX512
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vnni")) {
    found.push_back(&avx512_kernels);
  }
#endif
#if UNSPOOL_HAS_AVXVNNI
  if (avx2 && has_avx_vnni()) found.push_back(&avxvnni_kernels);
#endif
#if UNSPOOL_HAS_AVX2
  if (avx2) found.push_back(&avx2_kernels);
#endif
  found.push_back(&portable_kernels);
  return found;
}

// Asked once: under a hypervisor the question costs more than sampling a row.
const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = detect();
  return found;
}

}  // namespace

const Kernels& kernels(const std::string& name) {
  std::string names;
  for (const Kernels* candidate : available()) {
    if (name == "auto" || name == candidate->name) return *candidate;
    names += names.empty() ? "" : ", ";
    names += candidate->name;
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here; there is: auto, " + names);
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* candidate : available()) names.emplace_back(candidate->name);
  return names;
}

}  // namespace unspool
