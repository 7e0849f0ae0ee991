// A server for one model on the engine library: listens, loads an artifact, answers until Ctrl-C.
//
//   build/native/example_server ARTIFACT [PORT]
//
// recsys-serve does more: a repository of versions, metrics, REST, an admin port.
#include <poll.h>
#include <pthread.h>
#include <sys/signalfd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "engine/artifact/artifact_model.h"
#include "engine/engine.h"
#include "recsys/error.h"

namespace {

/// Prints the engine's log; other events were not requested.
void ShowEvents(recsys::Engine* engine) {
  for (const recsys::Event& event : engine->Take(64)) {
    if (const auto* line = std::get_if<recsys::LogEvent>(&event)) {
      std::fprintf(stderr, "%s\n", line->text.c_str());
    }
  }
}

int Serve(const char* artifact, int port, int stop) {
  recsys::EngineSettings records;
  records.ended = "none";
  recsys::Engine engine(records, recsys::OpenArtifact);
  recsys::PortSettings listening;
  listening.port = port;
  std::printf("listening on 127.0.0.1:%d\n", engine.Listen(listening, {}, {}, std::nullopt));

  recsys::VersionSettings settings;
  settings.name = "model";
  settings.version = "1";
  const auto version = engine.Open(artifact, settings);
  recsys::RouteSpec route;
  route.model = "model";
  route.serving = "1";
  route.is_only = true;
  engine.Publish(route, {version});
  engine.SetHealth("", true);
  std::puts("ready");

  pollfd files[2] = {{stop, POLLIN, 0}, {engine.event_fd(), POLLIN, 0}};
  while (files[0].revents == 0) {
    poll(files, 2, -1);
    ShowEvents(&engine);
  }
  const bool is_clean = engine.Close(/*grace_s=*/30);
  engine.Withdraw("model");
  version->Close();
  return is_clean ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s ARTIFACT [PORT]\n", argv[0]);
    return 2;
  }
  // Blocked before the engine's threads start, so that none of them handles these signals.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) sigaddset(&signals, number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  sigdelset(&signals, SIGPIPE);
  const int stop = signalfd(-1, &signals, SFD_CLOEXEC);
  try {
    return Serve(argv[1], argc > 2 ? std::atoi(argv[2]) : 8500, stop);
  } catch (const recsys::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
