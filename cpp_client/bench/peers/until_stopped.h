#ifndef RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_
#define RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_

namespace recsys::peers {

/// To be called before any other thread starts: SIGTERM and SIGINT wait until UntilStopped.
void HoldSignals();

/// Prints {"port": N} on a line of its own, and returns on SIGTERM or SIGINT.
void UntilStopped(int port);

}  // namespace recsys::peers

#endif  // RECSYS_BENCH_PEERS_UNTIL_STOPPED_H_
