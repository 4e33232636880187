#include "trireme/plan/html_charts.h"

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/sizes.h"
#include "trireme/plan/html_text.h"
#include "trireme/plan/plan_text.h"

namespace trireme {
namespace {

constexpr double kBarPixels = 900;  // about, on a page of full width
constexpr double kLetterPixels = 7;

std::string css_percent(double share) {
  return cat(format_fixed(100 * share, 4), "%");
}

std::string mark(const char* kind, double share) {
  return cat("<span class=\"", kind, "\" style=\"left:", css_percent(share), "\"></span>");
}

std::string coordinate(double pixels) {
  return format_fixed(pixels, 1);
}

std::string label(double value, double x, double y) {
  return cat("<text text-anchor=\"middle\" x=\"", coordinate(x), "\" y=\"", coordinate(y), "\" data-value=\"",
             whole_digits(value), "\">", rate_text(value), "</text>");
}

}  // namespace

std::string html_bar(const std::vector<BarSegment>& segments, double whole, double limit) {
  double sum = 0;
  for (const BarSegment& segment : segments) sum += segment.amount;
  const double width = std::max(whole, sum);
  double left = 0;
  std::string html = "<div class=\"bar\" aria-hidden=\"true\">";
  for (size_t i = 0; i < segments.size(); ++i) {
    const BarSegment& segment = segments[i];
    if (segment.amount <= 0) continue;
    const double share = segment.amount / width;
    const bool has_room = share * kBarPixels > kLetterPixels * (static_cast<double>(segment.name.size()) + 2);
    html += cat("<span class=\"segment tone-", i % 2 == 0 ? "a" : "b", segment.hatched ? " hatched" : "",
                "\" style=\"width:", css_percent(share), ";left:", css_percent(left / width), "\" title=\"",
                html_escaped(segment.name), "\">",
                has_room ? cat("<b>", html_escaped(segment.name), "</b>") : "", "</span>");
    left += segment.amount;
  }
  if (limit > 0) html += mark("limit", limit / width);
  if (sum > whole) html += mark("end", whole / width);
  return html + "</div>\n";
}

std::string svg_chart(const std::vector<ChartPoint>& points, const std::string& x_name,
                      const std::string& y_name) {
  constexpr double kLeft = 60, kRight = 80, kTop = 50, kStep = 84, kHeight = 230;
  TRIREME_ASSERT(points.size() > 1, "a chart of ", points.size(), " points");
  const double width = std::max(420.0, kStep * static_cast<double>(points.size() - 1));
  const double first = std::log2(points.front().x), last = std::log2(points.back().x);
  double highest = 0;
  for (const ChartPoint& point : points) highest = std::max(highest, point.y);
  const std::string floor = coordinate(kTop + kHeight);
  std::string line, stems, marks, labels;
  double label_end = 0;
  for (const ChartPoint& point : points) {
    const double left = kLeft + width * (std::log2(point.x) - first) / (last - first),
                 top = kTop + kHeight * (1 - point.y / highest);
    const std::string x = coordinate(left), y = coordinate(top);
    line += cat(line.empty() ? "" : " ", x, ",", y);
    stems += cat("<line class=\"stem\" stroke=\"currentColor\" x1=\"", x, "\" x2=\"", x, "\" y1=\"", y,
                 "\" y2=\"", floor, "\"/>");
    marks += point.marked ? cat("<rect class=\"best\" x=\"", coordinate(left - 6), "\" y=\"",
                                coordinate(top - 6), "\" width=\"12\" height=\"12\"/>")
                          : cat("<circle class=\"point\" cx=\"", x, "\" cy=\"", y, "\" r=\"4\"/>");
    // The last two may lie closer than a step.
    const bool is_close = left < label_end;
    labels += label(point.y, left, top - (is_close ? 25 : 11)) +
              label(point.x, left, kTop + kHeight + (is_close ? 34 : 18));
    label_end = left + 70;
  }
  return cat("<svg role=\"img\" aria-label=\"", html_escaped(y_name), " by ", html_escaped(x_name),
             "; the table below says the same\" viewBox=\"0 0 ", format_fixed(kLeft + width + kRight, 0), " ",
             format_fixed(kTop + kHeight + 66, 0), "\">\n", stems,
             "<line class=\"axis\" stroke=\"currentColor\" x1=\"", kLeft - 20, "\" x2=\"",
             coordinate(kLeft + width + 20), "\" y1=\"", floor, "\" y2=\"", floor,
             "\"/>\n<polyline class=\"line\" fill=\"none\" stroke=\"currentColor\" points=\"", line, "\"/>\n",
             marks, labels, "<text class=\"name\" x=\"", kLeft - 20, "\" y=\"14\">", html_escaped(y_name),
             "</text><text class=\"name\" x=\"", kLeft - 20, "\" y=\"", coordinate(kTop + kHeight + 58),
             "\">", html_escaped(x_name), "</text>\n</svg>\n");
}

}  // namespace trireme
