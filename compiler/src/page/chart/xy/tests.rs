use super::*;

const DEGENERATE: [&[f64]; 10] = [
    &[],
    &[1.0],
    &[0.0, 0.0, 0.0],
    &[-3.0, -3.0],
    &[f64::MAX, f64::MIN],
    &[1e308, -1e308, 1e300],
    &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY],
    &[5e-324, 0.0],
    &[-1.0, 0.0, 1.0],
    &[1e18, 1e18 + 256.0],
];

const KINDS: [Kind; 4] = [Kind::Linear, Kind::Log, Kind::Whole, Kind::Bytes];

/// A text may stand near the view box.
#[track_caller]
pub fn assert_inside(drawing: &str) {
    for (name, most) in [(" x=\"", WIDTH), (" y=\"", 1000.0), (" width=\"", WIDTH)] {
        for rest in drawing.split(name).skip(1) {
            let number: f64 = rest.split('"').next().unwrap().parse().unwrap();
            assert!((-2.0..=most).contains(&number), "{name}{number}: {drawing}");
        }
    }
    for path in drawing.split(" d=\"M").skip(1) {
        let start = path.split(['m', 'V', 'H', 'v', '"', 'L']).next().unwrap();
        for number in start.split(' ') {
            let number: f64 = number.parse().unwrap();
            assert!((0.0..=WIDTH).contains(&number), "{start}: {drawing}");
        }
    }
    assert!(
        !drawing.contains("NaN") && !drawing.contains("inf\""),
        "{drawing}"
    );
}

fn chart(x: Kind, y: Kind, xs: &[f64], ys: &[f64]) -> Xy {
    let points = xs.iter().zip(ys);
    let points = points.map(|(&x, &y)| {
        Point::new(x, y)
            .within(Some((y - 1.0, y + 1.0)))
            .labelled("")
    });
    let series = (0..7).map(|number| Series {
        line: number % 2 == 0,
        ..Series::line(&format!("series {number}"), number, points.clone())
    });
    Xy::new("title", Axis::new("x", x), Axis::new("y", y), series)
}

#[test]
fn degenerate_points_are_drawn_inside_the_chart() {
    for x in KINDS {
        for y in KINDS {
            for values in DEGENERATE {
                let mut chart = chart(x, y, values, values);
                chart.bands = vec![Band {
                    from: -1e300,
                    to: 1e300,
                    name: "band".into(),
                    shade: 2.0,
                }];
                assert_inside(&chart.draw().svg.into_string());
                chart.diagonal = true;
                assert_inside(&chart.draw().svg.into_string());
            }
        }
    }
}

#[test]
fn equal_steps_are_drawn_as_equal_distances() {
    let points = [0.0, 1.0, 2.0].map(|v| Point::new(v, v));
    let series = vec![Series::scatter("s", 1, points)];
    let (x, y) = (Axis::new("x", Kind::Whole), Axis::new("y", Kind::Linear));
    let svg = Xy::new("t", x, y, series).draw().svg.into_string();
    let places: Vec<Vec<f64>> = svg
        .split(" d=\"M")
        .filter_map(|path| path.split_once("m-3.4"))
        .map(|(start, _)| start.split(' ').map(|n| n.parse().unwrap()).collect())
        .collect();
    assert_eq!(places.len(), 3, "{svg}");
    for axis in [0, 1] {
        let steps = [
            places[1][axis] - places[0][axis],
            places[2][axis] - places[1][axis],
        ];
        assert!((steps[0] - steps[1]).abs() <= 0.2, "{steps:?}");
        assert!(if axis == 0 {
            steps[0] > 0.0
        } else {
            steps[0] < 0.0
        });
    }
    assert!(
        svg.contains("fill=\"var(--c1)\"") && svg.contains("y: 0 to 2"),
        "{svg}"
    );
}

#[test]
fn labels_do_not_overlap() {
    let point = |i: usize| {
        let point = Point::new(1.0 + (i % 4) as f64 * 0.1, 1.0 + (i / 4) as f64 * 0.01);
        point.labelled(format!("a candidate {i}"))
    };
    let series = vec![Series::line("s", 0, (0..12).map(point))];
    let (x, y) = (Axis::new("x", Kind::Linear), Axis::new("y", Kind::Linear));
    let chart = Xy::new("t", x, y, series);
    let labels = chart.labels(&Frame::new(&chart));
    assert!(labels.len() >= 3, "{labels:?}");
    for (i, one) in labels.iter().enumerate() {
        let one = &one.area;
        assert!(one.is_inside() && labels[i + 1..].iter().all(|other| !one.meets(&other.area)));
    }
}

#[test]
fn tables_list_what_charts_draw() {
    for name in ["", "a name"] {
        let mut chart = chart(Kind::Linear, Kind::Linear, &[1.5, 2.5], &[0.125, 0.375]);
        for point in chart.series.iter_mut().flat_map(|s| &mut s.points) {
            point.name = name.into();
        }
        let text = chart.table().render("caption").into_string();
        for part in [
            "1.5", "2.5", "0.125", "0.375", "-0.875", "1.375", name, "series 6",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.contains("<caption><span>caption</span></caption>"));
    }
}

#[test]
fn tables_are_no_larger_than_their_points() {
    let series = (0..2000).map(|i| Series::line("s", 0, [Point::new(f64::from(i), 1.0)]));
    let (x, y) = (Axis::new("x", Kind::Linear), Axis::new("y", Kind::Linear));
    let chart = Xy::new("t", x, y, series);
    let text = chart.table().render("caption").into_string();
    assert!(text.len() < 500_000, "{}", text.len());
}
