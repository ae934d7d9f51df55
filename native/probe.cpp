#include "probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "isa.h"
#include "memory.h"
#include "threads.h"

namespace unspool {

double read_bandwidth(Pool& pool, size_t bytes_per_worker, int repeats) {
  const Kernels& best = kernels("auto");
  const size_t bytes = bytes_per_worker / 256 * 256;
  std::vector<Memory> memory;
  for (int worker = 0; worker < pool.size(); worker++) memory.emplace_back(bytes);
  pool.run([&](int worker) { std::fill_n(memory[worker].data(), bytes, static_cast<uint8_t>(1)); });
  double fastest = 0;
  for (int i = 0; i < repeats; i++) {
    const auto start = std::chrono::steady_clock::now();
    pool.run([&](int worker) { best.read(memory[worker].data(), bytes); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fastest = std::max(fastest, static_cast<double>(bytes) * pool.size() / seconds.count());
  }
  return fastest;
}

}  // namespace unspool
