// How fast this machine's memory can be read by all workers together.
#pragma once
#include <cstddef>

namespace unspool {

class Pool;

// Bytes a second, the best of `repeats` readings of `bytes_per_worker` bytes by each worker. The memory should
// be much larger than the caches. Throws std::bad_alloc.
double read_bandwidth(Pool& pool, size_t bytes_per_worker, int repeats);

}  // namespace unspool
