// The pictures of a plan's page, each beside a table that says the same: bars of HTML, and a chart as inline
// SVG. Segments differ by tone and border, hatched ones by their pattern, so that no colour is needed.
#pragma once

#include <string>
#include <vector>

namespace trireme {

struct BarSegment {
  std::string name;
  double amount = 0;
  bool hatched = false;
};

// Segments from left to right, each amount / whole of the width; where they are more than the whole, of their
// sum, and a line is where the whole ends. `limit` above 0: a mark at so much.
std::string html_bar(const std::vector<BarSegment>& segments, double whole, double limit = 0);

struct ChartPoint {
  double x = 0;
  double y = 0;
  bool marked = false;
};
// A line through the points, x by its logarithm, y from zero. Each point says its values, rounded, and whole
// in data-value. Two points or more, by growing x.
std::string svg_chart(const std::vector<ChartPoint>& points, const std::string& x_name,
                      const std::string& y_name);

}  // namespace trireme
