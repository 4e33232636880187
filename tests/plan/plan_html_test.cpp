// A plan's page: well formed, alone, harmless with names from outside, and of the plan's own numbers.
#include "trireme/plan/plan_html.h"

#include <cmath>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/plan/hardware_catalog.h"
#include "trireme/plan/plan_json.h"

#include "tests/plan/parsed_page.h"
#include "tests/plan/small_request.h"

namespace trireme::plan_html_test {
namespace {

using ::testing::HasSubstr;
using testing::PageElement;
using testing::ParsedPage;
using testing::small_request;

constexpr int64_t kMiB = int64_t{1} << 20;
const char* const kHostileName = "</title><script>alert(\"1\")</script>&amp;'\x01\xff";
const char* const kLaunch = "trireme train --max_seq_length 32768 <RUN> && true";

// Some of its activations go to the host, and others do not fit.
PlanRequest request_with_sources() {
  PlanRequest request = small_request(4, 32768, 220 * kMiB);
  request.hardware.sources = find_hardware("h100-80gb").sources;
  request.hardware.outside_tensors_bytes = 3 * kMiB;
  request.hardware.fragments_share = 0.05;
  request.token_budget = int64_t{5} << 30;
  request.target_tokens_per_second = 1e5;
  request.pinned.offload_optimizer = Offload::cpu;
  return request;
}

void collect(const Json& json, std::vector<double>& numbers, std::vector<std::string>& texts) {
  if (json.is_number()) numbers.push_back(json.get<double>());
  if (json.is_string()) texts.push_back(json.get<std::string>());
  if (json.is_structured())
    for (const Json& each : json) collect(each, numbers, texts);
}

double number_of(std::string text) {
  std::erase(text, ',');
  return std::stod(text);
}

// What a person reads is the value, rounded.
void expect_rounded(double value, const std::string& text) {
  static const std::map<std::string, double> kUnits{{"", 1},         {"B", 1},        {"KiB", 0x1p10},
                                                    {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                                    {"%", 0.01},     {"s", 1},        {"h", 3600}};
  const std::regex form("(-?[0-9][0-9,]*(\\.[0-9]+)?)( ([A-Za-z%]+))?");
  std::smatch match;
  ASSERT_TRUE(std::regex_match(text, match, form)) << text;
  ASSERT_TRUE(kUnits.contains(match[4])) << text;
  const double unit = kUnits.at(match[4]);
  const auto digits = match[2].length() == 0 ? 0 : match[2].length() - 1;
  EXPECT_NEAR(number_of(match[1]) * unit, value, 0.5001 * unit * std::pow(10, -static_cast<double>(digits)))
      << text;
}

// Every number of the page is one of the JSON's: whole in its <data>, or a whole number of it, or within one
// of its texts.
void expect_numbers_of(const ParsedPage& page, const Json& json) {
  std::vector<double> numbers;
  std::vector<std::string> texts;
  collect(json, numbers, texts);
  const std::set<double> known(numbers.begin(), numbers.end());
  std::ranges::sort(texts, std::greater<>(), &std::string::size);
  int shown = 0;
  for (const PageElement& element : page.elements) {
    if (element.name == "style") continue;
    const char* attribute = element.name == "data" ? "value" : "data-value";
    if (element.attributes.contains(attribute)) {
      const double value = std::stod(element.attributes.at(attribute));
      EXPECT_TRUE(known.contains(value)) << element.text << ": " << element.attributes.at(attribute);
      expect_rounded(value, element.text);
      ++shown;
      continue;
    }
    std::string rest = element.own_text;
    for (const std::string& text : texts)
      for (size_t at = 0; text.size() > 1 && (at = rest.find(text)) != std::string::npos;)
        rest.replace(at, text.size(), " ");
    const std::regex digits("[0-9][0-9,.]*");
    for (std::sregex_iterator each(rest.begin(), rest.end(), digits), end; each != end; ++each)
      EXPECT_TRUE(known.contains(number_of(each->str()))) << each->str() << " in: " << element.own_text;
  }
  EXPECT_GT(shown, 10);
}

double style_share(const PageElement& element, const char* property) {
  const std::string& style = element.attributes.at("style");
  EXPECT_EQ(style.rfind(property, 0), 0) << style;
  return std::stod(style.substr(style.find(':') + 1)) / 100;
}

// The name of each segment of a bar, and its share of the width.
std::map<std::string, double> shares_of(const ParsedPage& page, const PageElement& bar) {
  std::map<std::string, double> shares;
  for (const PageElement* segment : page.children(bar))
    if (segment->attributes.at("class").starts_with("segment"))
      shares[segment->attributes.at("title")] = style_share(*segment, "width");
  return shares;
}

std::map<std::string, double> shares_of(const Json& bytes, double whole, double times = 1) {
  std::map<std::string, double> shares;
  for (const auto& [name, value] : bytes.items())
    if (value.get<double>() > 0) shares[name] = value.get<double>() * times / whole;
  return shares;
}

void expect_near(const std::map<std::string, double>& got, const std::map<std::string, double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [name, share] : expected) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_NEAR(got.at(name), share, 1e-6) << name;
  }
}

std::map<std::string, double> device_shares(const Json& planned, double whole) {
  Json bytes = planned["memory"]["fullest_category_bytes"];
  bytes["beside tensors"] = planned["memory"]["beside_tensors_bytes"];
  return shares_of(bytes, whole);
}

TEST(PlanPage, numbers_are_those_of_the_json) {
  const PlanRequest request = request_with_sources();
  const Plan plan = make_plan(request);
  Json json = plan_json(request, plan);
  json["launch"] = kLaunch;
  const std::string html = plan_html(request, plan, kLaunch);
  expect_numbers_of(ParsedPage(html), json);
}

TEST(PlanPage, bars_are_as_wide_as_their_bytes) {
  const PlanRequest request = request_with_sources();
  const Plan plan = make_plan(request);
  const Json json = plan_json(request, plan);
  const std::string html = plan_html(request, plan, kLaunch);
  const ParsedPage page(html);
  const auto bars = page.all("div", "bar");
  const Json& memory = json["best"]["memory"];
  const double device = memory["device_memory_bytes"];
  ASSERT_GT(plan.best.memory.host_bytes, 0);

  double sum = 0;
  for (const PageElement* segment : page.children(*bars.at(0))) {
    if (!segment->attributes.at("class").starts_with("segment")) continue;
    EXPECT_NEAR(
        std::stod(segment->attributes.at("style").substr(segment->attributes.at("style").find("left:") + 5)) /
            100,
        sum, 1e-5)
        << "gaps";
    sum += style_share(*segment, "width");
  }
  EXPECT_NEAR(sum, memory["device_bytes"].get<double>() / device, 1e-5);
  expect_near(shares_of(page, *bars[0]), device_shares(json["best"], device));
  expect_near(shares_of(page, *bars.at(1)),
              shares_of(memory["host_category_bytes"], memory["machine_host_memory_bytes"], 4));
  const auto marks = page.all("span", "limit");
  EXPECT_NEAR(style_share(*marks.at(0), "left"), memory["device_limit_bytes"].get<double>() / device, 1e-6);

  // The step's, whole.
  sum = 0;
  for (const auto& [name, share] : shares_of(page, *bars.at(2))) sum += share;
  EXPECT_NEAR(sum, 1, 1e-4);
  const double seconds = json["best"]["time"]["step_seconds"];
  EXPECT_NEAR(shares_of(page, *bars[2]).at("matmul"),
              json["best"]["time"]["compute_kind_seconds"]["matmul"].get<double>() / seconds, 1e-6);
}

TEST(PlanPage, runners_up_have_bars_and_reasons_and_say_where_memory_ends) {
  const PlanRequest request = request_with_sources();
  const Plan plan = make_plan(request);
  const Json json = plan_json(request, plan);
  const std::string html = plan_html(request, plan, kLaunch);
  const ParsedPage page(html);
  int over = 0;
  for (const Json& runner : json["runners_up"]) {
    const PageElement* row = nullptr;
    for (const PageElement* each : page.all("tr"))
      if (each->text.starts_with(runner["change"].get<std::string>() + runner["reason"].get<std::string>()))
        row = each;
    ASSERT_NE(row, nullptr) << runner["change"];
    const PageElement* bar = nullptr;
    for (const PageElement* cell : page.children(*row))
      for (const PageElement* each : page.children(*cell))
        if (each->name == "div" && bar == nullptr) bar = each;
    ASSERT_NE(bar, nullptr);
    const double memory = runner["memory"]["device_memory_bytes"], used = runner["memory"]["device_bytes"];
    expect_near(shares_of(page, *bar), device_shares(runner, std::max(memory, used)));
    const auto segments = page.children(*bar);
    EXPECT_EQ(segments.back()->attributes.at("class") == "end", used > memory);
    over += used > memory ? 1 : 0;
  }
  EXPECT_GT(over, 0);
}

TEST(PlanPage, chart_has_a_point_for_each_length_of_the_frontier) {
  const PlanRequest request = request_with_sources();
  const Plan plan = make_plan(request);
  const std::string html = plan_html(request, plan, kLaunch);
  const ParsedPage page(html);
  ASSERT_GT(plan.frontier.size(), 1);
  EXPECT_EQ(page.all("circle", "point").size() + page.all("rect", "best").size(), plan.frontier.size());
  EXPECT_EQ(page.all("rect", "best").size(), 1);
  std::istringstream corners(page.all("polyline").at(0)->attributes.at("points"));
  double highest = 0, floor = std::stod(page.all("line", "axis").at(0)->attributes.at("y1"));
  for (const Planned& each : plan.frontier) highest = std::max(highest, each.time.tokens_per_second);
  double top = floor;
  std::vector<double> heights;
  for (double x = 0, y = 0, before = -1; corners >> x && corners.ignore() && corners >> y; before = x) {
    EXPECT_GT(x, before);
    heights.push_back(floor - y);
    top = std::min(top, y);
  }
  ASSERT_EQ(heights.size(), plan.frontier.size());
  for (size_t i = 0; i < heights.size(); ++i)
    EXPECT_NEAR(heights[i] / (floor - top), plan.frontier[i].time.tokens_per_second / highest, 1e-3);
}

TEST(PlanPage, takes_names_from_outside_as_text) {
  PlanRequest request = request_with_sources();
  request.model_name = kHostileName;
  request.hardware.name = request.hardware.description = "<img src=x onerror=alert(1)>";
  request.hardware.sources = {{"<b>figure", FigureOrigin::estimated, "<i>source\""}};
  const Plan plan = make_plan(request);
  for (const std::string& html :
       {plan_html(request, plan, "<script>"), stages_html(request, {plan}, "<script>")}) {
    const ParsedPage page(html);
    const std::set<std::string> used{
        "html", "head", "meta", "title", "style", "body", "h1",     "h2",       "h3",      "p",     "dl",
        "div",  "dt",   "dd",   "small", "data",  "pre",  "strong", "table",    "caption", "thead", "tbody",
        "tr",   "th",   "td",   "span",  "b",     "svg",  "line",   "polyline", "circle",  "rect",  "text"};
    for (const PageElement& element : page.elements) {
      EXPECT_TRUE(used.contains(element.name)) << element.name;
      for (const auto& [name, value] : element.attributes)
        EXPECT_FALSE(name.starts_with("on") || name == "src" || name == "href") << name << "=" << value;
    }
    EXPECT_THAT(page.all("h1").at(0)->text,
                HasSubstr("</title><script>alert(\"1\")</script>&amp;'\xEF\xBF\xBD\xEF\xBF\xBD"));
    EXPECT_THAT(page.all("td")[0]->text + page.all("body")[0]->text, HasSubstr("<i>source\""));
  }
}

TEST(PlanPage, of_what_does_not_fit_says_so) {
  const PlanRequest request = small_request(1, 1 << 20, 100 * kMiB);
  const Plan plan = make_plan(request);
  ASSERT_FALSE(plan.fits());
  const std::string html = plan_html(request, plan, "");
  const ParsedPage page(html);
  EXPECT_THAT(page.all("p", "over").at(0)->text, HasSubstr("Nothing fits"));
  EXPECT_FALSE(page.all("span", "end").empty());
}

TEST(PlanPage, of_stages_has_a_row_and_a_launch_for_each) {
  const PlanRequest request = request_with_sources();
  const auto plans = plan_stages(request, {8192, 16384});
  const std::string html = stages_html(request, plans, "launch & more");
  const ParsedPage page(html);
  Json json = {plan_json(request, plans[0]), plan_json(request, plans[1]), {request.devices}};
  expect_numbers_of(page, json);
  std::set<std::pair<FigureOrigin, std::string>> sources;
  for (const FigureSource& source : request.hardware.sources) sources.emplace(source.origin, source.source);
  EXPECT_EQ(page.all("tr").size(), 1 + plans.size() + 1 + sources.size());
  EXPECT_EQ(page.all("pre").at(0)->text, "launch & more");
}

}  // namespace
}  // namespace trireme::plan_html_test
