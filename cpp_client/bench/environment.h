#ifndef RECSYS_BENCH_ENVIRONMENT_H_
#define RECSYS_BENCH_ENVIRONMENT_H_

#include <string>

#include "bench/latencies.h"
#include "recsys/client.h"

namespace recsys::bench {

/// Versions of what sends.
Json Tool();

/// The machine that sends; its name is nobody's business.
Json Machine();

/// What answers, as it says itself.
Json Served(const ModelMetadata& metadata);

/// The time, to the second, in UTC.
std::string Now();

}  // namespace recsys::bench

#endif  // RECSYS_BENCH_ENVIRONMENT_H_
