#ifndef RECSYS_CONFIG_FIELDS_H_
#define RECSYS_CONFIG_FIELDS_H_

// The fields of each struct of settings by name, in the order of Python's dataclasses:
// VisitFields(settings, visitor) calls visitor(name, field) for each. A test compares them with
// options_table.inc.

#include <type_traits>

#include "config/settings.h"

namespace recsys {

template <typename S, typename T>
using OnlyFor = std::enable_if_t<std::is_same_v<std::remove_const_t<S>, T>, int>;

template <typename S, typename V, OnlyFor<S, BatchLimits> = 0>
void VisitFields(S& s, V&& visit) {
  visit("max_batch_rows", s.max_batch_rows);
  visit("max_batch_ids", s.max_batch_ids);
  visit("max_request_rows", s.max_request_rows);
  visit("max_request_ids", s.max_request_ids);
  visit("max_queue_rows", s.max_queue_rows);
  visit("max_queue_ids", s.max_queue_ids);
  visit("max_queue_bytes", s.max_queue_bytes);
  visit("max_delay_us", s.max_delay_us);
  visit("priority_window_us", s.priority_window_us);
}

template <typename S, typename V, OnlyFor<S, Routing> = 0>
void VisitFields(S& s, V&& visit) {
  visit("serve", s.serve);
  visit("canary", s.canary);
  visit("canary_percent", s.canary_percent);
  visit("shadow", s.shadow);
  visit("shadow_percent", s.shadow_percent);
}

template <typename S, typename V, OnlyFor<S, ModelSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("limits", s.limits);
  visit("routing", s.routing);
  visit("target", s.target);
  visit("verify_checksums", s.verify_checksums);
  visit("copy_rows", s.copy_rows);
  visit("allow_non_finite", s.allow_non_finite);
  visit("num_executors", s.num_executors);
  visit("cpus", s.cpus);
  visit("warm_up", s.warm_up);
  visit("keep_previous", s.keep_previous);
}

template <typename S, typename V, OnlyFor<S, TlsSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("certificate", s.certificate);
  visit("key", s.key);
  visit("client_ca", s.client_ca);
}

template <typename S, typename V, OnlyFor<S, AdminSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("token_file", s.token_file);
  visit("host", s.host);
  visit("port", s.port);
}

template <typename S, typename V, OnlyFor<S, ConnectionLimits> = 0>
void VisitFields(S& s, V&& visit) {
  visit("max_connections", s.max_connections);
  visit("max_message_bytes", s.max_message_bytes);
  visit("max_json_bytes", s.max_json_bytes);
  visit("max_concurrent_streams", s.max_concurrent_streams);
  visit("max_stream_requests", s.max_stream_requests);
  visit("max_connection_idle_s", s.max_connection_idle_s);
  visit("max_connection_age_s", s.max_connection_age_s);
}

template <typename S, typename V, OnlyFor<S, LogSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("as_json", s.as_json);
  visit("requests", s.requests);
}

template <typename S, typename V, OnlyFor<S, TraceSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("endpoint", s.endpoint);
  visit("share", s.share);
}

template <typename S, typename V, OnlyFor<S, CaptureSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("path", s.path);
  visit("share", s.share);
  visit("max_bytes", s.max_bytes);
}

template <typename S, typename V, OnlyFor<S, ServerSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("host", s.host);
  visit("port", s.port);
  visit("metrics_port", s.metrics_port);
  visit("http_port", s.http_port);
  visit("defaults", s.defaults);
  visit("models", s.models);
  visit("connections", s.connections);
  visit("tls", s.tls);
  visit("admin", s.admin);
  visit("log", s.log);
  visit("trace", s.trace);
  visit("capture", s.capture);
  visit("poll_repository_s", s.poll_repository_s);
  visit("drain_timeout_s", s.drain_timeout_s);
}

template <typename S, typename V, OnlyFor<S, SourceSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("artifact", s.artifact);
  visit("repository", s.repository);
  visit("models", s.models);
}

template <typename S, typename V, OnlyFor<S, ProcessSettings> = 0>
void VisitFields(S& s, V&& visit) {
  visit("intra_op_threads", s.intra_op_threads);
  visit("malloc_tuning", s.malloc_tuning);
  visit("switch_interval_us", s.switch_interval_us);
}

}  // namespace recsys

#endif  // RECSYS_CONFIG_FIELDS_H_
