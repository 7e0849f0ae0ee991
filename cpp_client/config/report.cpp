#include "config/report.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "config/value_text.h"

namespace recsys {
namespace {

constexpr std::size_t kNumColumns = 3;
constexpr std::size_t kMargin = 1;
constexpr std::size_t kLeastWidth = 8;
using Cells = std::array<std::string, kNumColumns>;
using Widths = std::array<std::size_t, kNumColumns>;

std::size_t NumChars(const std::string& text) {
  std::size_t num_chars = 0;
  for (std::size_t at = 0; at < text.size(); ++num_chars) at += CharAt(text, at).num_bytes;
  return num_chars;
}

std::string JsonTexts(const std::vector<Finding>& findings, bool is_error) {
  std::string text;
  for (const Finding& finding : findings) {
    if (finding.is_error != is_error) continue;
    text += (text.empty() ? "" : ", ") + JsonText(finding.text);
  }
  return "[" + text + "]";
}

bool HasErrors(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.is_error; });
}

/// As wide as the cells; where that is too much, the widest column gives way, a cell going on in
/// the next line.
Widths WidthsOf(const std::vector<Cells>& rows, std::size_t columns) {
  Widths widths{};
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < kNumColumns; ++i) widths[i] = std::max(widths[i], NumChars(row[i]));
  }
  const auto whole = [&widths] {
    std::size_t sum = kMargin;
    for (const std::size_t width : widths) sum += width + 2 * kMargin + 1;
    return sum;
  };
  while (whole() > columns) {
    std::size_t& widest = *std::max_element(widths.begin(), widths.end());
    if (widest <= kLeastWidth) break;
    --widest;
  }
  return widths;
}

/// A row, in as many lines as its cells need.
std::string Line(Cells cells, const Widths& widths) {
  std::string text;
  bool is_left = true;
  while (is_left) {
    is_left = false;
    std::string line = " ";
    for (std::size_t i = 0; i < kNumColumns; ++i) {
      const std::string part(FirstChars(cells[i], widths[i]));
      cells[i].erase(0, part.size());
      is_left = is_left || !cells[i].empty();
      line += " " + part + std::string(widths[i] - NumChars(part) + 2 * kMargin, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string Rule(const Widths& widths) {
  std::string text = " ";
  for (const std::size_t width : widths) {
    for (std::size_t i = 0; i < width + 2 * kMargin + 1; ++i) text += "\u2500";
  }
  return text + "\n";
}

}  // namespace

std::string JsonReport(const Effective& effective, const std::vector<Finding>& findings) {
  std::string settings;
  for (const Effective::Row& row : effective.Rows()) {
    settings += (settings.empty() ? "" : ", ") + JsonText(row.key) +
                ": {\"value\": " + JsonValue(row.value) + ", \"from\": " + JsonText(row.origin) +
                "}";
  }
  return std::string("{\"ok\": ") + (HasErrors(findings) ? "false" : "true") + ", \"settings\": {" +
         settings + "}, \"errors\": " + JsonTexts(findings, true) +
         ", \"warnings\": " + JsonTexts(findings, false) + "}\n";
}

std::string TextReport(const Effective& effective, const std::vector<Finding>& findings,
                       int columns) {
  std::vector<Cells> rows = {{"key", "value", "from"}};
  for (const Effective::Row& row : effective.Rows()) {
    rows.push_back({row.key, ShownValue(row.value), row.origin});
  }
  const Widths widths = WidthsOf(rows, static_cast<std::size_t>(std::max(columns, 0)));
  std::string text = "settings\n\n" + Line(rows.front(), widths) + Rule(widths);
  for (std::size_t i = 1; i < rows.size(); ++i) text += Line(rows[i], widths);
  text += "\n";
  for (const Finding& finding : findings) {
    if (!finding.is_error) text += "warning: " + finding.text + "\n";
  }
  return HasErrors(findings) ? text : text + "the settings can be used\n";
}

}  // namespace recsys
