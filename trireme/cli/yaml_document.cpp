// YAML's events into JSON. Events, not nodes: aliases are refused before they could multiply, and equal keys
// are noticed.
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include "trireme/base/error.h"
#include "trireme/cli/config_document.h"

namespace trireme {
namespace {

constexpr size_t kMostDepth = 32;

// Of YAML 1.2's core schema; a number such as 2e-5 needs no point. Everything else is text.
Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL") return nullptr;
  if (text == "true" || text == "True" || text == "TRUE") return true;
  if (text == "false" || text == "False" || text == "FALSE") return false;
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return text;
  char* end = nullptr;
  errno = 0;
  if (text.find_first_of(".eE") == std::string::npos) {
    const int64_t whole = std::strtoll(text.c_str(), &end, 10);
    if (*end == '\0' && end != text.c_str() && errno == 0) return whole;
  }
  const double number = std::strtod(text.c_str(), &end);
  return *end == '\0' && end != text.c_str() && std::isfinite(number) ? Json(number) : Json(text);
}

class JsonOfEvents final : public YAML::EventHandler {
 public:
  explicit JsonOfEvents(const std::string& origin) : origin_(origin) {}

  Json take() { return std::move(document_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    refuse_anchor(mark, anchor);
    add(mark, nullptr);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "an alias (*name) is not read; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    refuse_anchor(mark, anchor);
    if (tag != "?" && tag != "!") refuse(mark, cat("the tag ", quotation(tag), " is not read; leave it out"));
    const bool is_key = !open_.empty() && open_.back().value.is_object() && !open_.back().has_key;
    add(mark, tag == "!" || is_key ? Json(value) : plain_scalar(value));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Json::array());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Json::object());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YAML::Mark mark;
    Json value;
    std::string key = {};
    bool has_key = false;  // its value comes next
  };

  [[noreturn]] void refuse(const YAML::Mark& mark, const std::string& why) const {
    throw DataError(cat(origin_, ": line ", mark.line + 1, ", column ", mark.column + 1, ": ", why));
  }
  void refuse_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != YAML::NullAnchor) refuse(mark, "an anchor (&name) is not read; leave it out");
  }
  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Json value) {
    refuse_anchor(mark, anchor);
    if (open_.size() >= kMostDepth)
      refuse(mark, cat("maps and lists lie more than ", kMostDepth, " deep in one another"));
    open_.push_back({mark, std::move(value)});
  }
  void close() {
    const Open closed = std::move(open_.back());
    open_.pop_back();
    add(closed.mark, closed.value);
  }
  void add(const YAML::Mark& mark, const Json& value) {
    if (open_.empty()) {
      document_ = value;
      return;
    }
    Open& around = open_.back();
    if (around.value.is_array()) {
      around.value.push_back(value);
    } else if (around.has_key) {
      around.value[around.key] = value;
      around.has_key = false;
    } else {
      if (!value.is_string()) refuse(mark, "a name is expected");
      around.key = value.get<std::string>();
      if (around.value.contains(around.key))
        refuse(mark, cat("\"", quotation(around.key), "\" is there twice in one map; give it once"));
      around.has_key = true;
    }
  }

  const std::string& origin_;
  std::vector<Open> open_;
  Json document_;
};

}  // namespace

Json parse_yaml(const std::string& text, const std::string& origin) {
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    JsonOfEvents events(origin);
    parser.HandleNextDocument(events);
    if (parser.HandleNextDocument(events))
      throw DataError(cat(origin, ": more than one document (---); expected one"));
    return events.take();
  } catch (const YAML::Exception& error) {
    throw DataError(cat(origin, ": not valid YAML at line ", error.mark.line + 1, ", column ",
                        error.mark.column + 1, ": ", quotation(error.msg)));
  }
}

}  // namespace trireme
