// recsys-server: serves an artifact, or a repository of models, until SIGTERM; the twin of
// recsys-serve.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "base/log.h"
#include "config/cli.h"
#include "config/machine.h"
#include "recsys/model.h"
#include "server/artifact_model.h"
#include "server/lifetime.h"
#include "server/models/manager.h"
#include "server/models/repository.h"
#include "server/native_server.h"
#include "server/observe/capture_file.h"
#include "server/observe/log_writer.h"

namespace {

using recsys::ModelSource;

// More than any machine has processors.
constexpr std::int64_t kMaxThreads = 1 << 16;

std::unique_ptr<ModelSource> SourceOf(const recsys::SourceSettings& source) {
  if (source.repository) {
    return std::make_unique<recsys::Repository>(*source.repository, source.models);
  }
  const recsys::ModelDescription artifact = recsys::DescribeArtifact(*source.artifact);
  return std::make_unique<recsys::SingleArtifact>(*source.artifact, artifact.name, artifact.digest);
}

recsys::ModelsThere ModelsOf(const recsys::SourceSettings& settings) {
  const std::shared_ptr<ModelSource> source = SourceOf(settings);
  const std::shared_ptr<ModelSource> all =
      settings.repository ? std::make_shared<recsys::Repository>(*settings.repository) : source;
  recsys::ModelsThere models;
  models.names = [source] { return source->Names(); };
  models.all_names = [all] { return all->Names(); };
  models.versions = [source](const std::string& model) { return source->Versions(model); };
  models.path = [source](const std::string& model, const std::string& version) {
    return source->Path(model, version);
  };
  models.check_manifest = [](const std::string& path) { recsys::DescribeArtifact(path); };
  models.check_artifact = recsys::CheckArtifact;
  models.check_capture = [](const std::string& path) { recsys::CaptureReader reader(path); };
  return models;
}

int Serve(recsys::Signals& signals, const recsys::CommandLine& line) {
  const recsys::Settings& settings = line.settings();
  recsys::SetIntraOpThreads(
      static_cast<int>(std::min<std::int64_t>(settings.process.intra_op_threads, kMaxThreads)));
  recsys::ProcessLog log(settings.server.log.as_json);
  const std::string warning = recsys::OpenFilesWarning(settings.server);
  if (!warning.empty()) recsys::Log(recsys::LogLevel::kWarning, warning);
  const auto start = [&] {
    return std::make_unique<recsys::NativeServer>(SourceOf(settings.source), settings.server,
                                                  recsys::OpenArtifact,
                                                  [&log] { return log.Counts(); });
  };
  try {
    return recsys::ServeUntilStopped(signals, start, settings.server, line.json);
  } catch (const recsys::NotServingError& error) {
    // What lies in a repository may be another thing at the next start.
    if (!error.is_unusable() || !settings.source.artifact) throw;
    throw recsys::Error(recsys::ErrorKind::kConfig, error.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  // Before there is a second thread.
  recsys::Signals signals;
  // What clients do wrong stands in our own log.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  recsys::ServerCommands commands;
  commands.open_models = ModelsOf;
  commands.serve = [&signals](const recsys::CommandLine& line) { return Serve(signals, line); };
  const int code = recsys::RunCommandLine(argc, argv, commands);
  std::fflush(nullptr);
  // Past the destructors of libraries: a version that is still being loaded may be within them.
  _exit(code);
}
