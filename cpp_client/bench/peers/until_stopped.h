#ifndef RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_
#define RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_

namespace recsys::peers {

/// Holds SIGTERM and SIGINT back until UntilStopped. Call it before any other thread starts.
void HoldSignals();

/// Prints {"port": N} on its own line, and returns on SIGTERM or SIGINT.
void UntilStopped(int port);

}  // namespace recsys::peers

#endif  // RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_
