use super::*;

/// Values that plots of hostile or degenerate files are asked for.
const DEGENERATE: [&[f64]; 10] = [
    &[],
    &[1.0],
    &[0.0, 0.0, 0.0],
    &[-3.0, -3.0],
    &[f64::MAX, f64::MIN],
    &[1e308, -1e308, 1e308],
    &[f64::NAN, f64::INFINITY, f64::NEG_INFINITY],
    &[5e-324, 0.0],
    &[-1.0, 0.0, 1.0],
    &[1e18, 1e18 + 256.0],
];

const KINDS: [Kind; 5] = [
    Kind::Linear,
    Kind::FromZero,
    Kind::Log,
    Kind::Whole,
    Kind::Bytes,
];

/// Every place in a drawing lies on it, or close by where a text stands or a marker has an edge.
#[track_caller]
fn on_canvas(drawing: &Drawing) {
    let (width, height) = drawing.size;
    for (names, most) in [
        (["\"cx", "x1", "x2", " x"], width),
        (["\"cy", "y1", "y2", " y"], height),
    ] {
        for name in names {
            let key = format!("{}=\"", name.trim_start_matches('"'));
            for rest in drawing.body.split(&key).skip(1) {
                let number: f64 = rest.split('"').next().unwrap().parse().unwrap();
                let slack = 60.0 * f64::from(FINE);
                assert!(
                    (-slack..=f64::from(most) + slack).contains(&number),
                    "{key}{number} is beyond {most}"
                );
            }
        }
    }
    for text in ["NaN", "inf", "#FEDC", "#fedc"] {
        assert!(!drawing.body.contains(text), "{text} in {}", drawing.body);
    }
}

fn xy(x: Kind, y: Kind, xs: &[f64], ys: &[f64]) -> Xy {
    let mut xy = Xy::new("title", Axis::new("x", x), Axis::new("y", y));
    let points = xs.iter().zip(ys).map(|(&x, &y)| Point {
        interval: Some((y - 1.0, y + 1.0)),
        name: "<name>".into(),
        named: true,
        ..Point::new(x, y)
    });
    for number in 0..7 {
        xy.series.push(Series {
            name: format!("series {number}"),
            colour: Colour::Thing(number),
            marker: Some(Marker::of(number)),
            line: number % 2 == 0,
            points: points.clone().collect(),
        });
    }
    xy
}

#[test]
fn degenerate_points_are_drawn() {
    for x in KINDS {
        for y in KINDS {
            for values in DEGENERATE {
                for small in [false, true] {
                    let mut plot = xy(x, y, values, values);
                    plot.small = small;
                    plot.bands = vec![Band {
                        from: -1e300,
                        to: 1e300,
                        name: "band".into(),
                        shade: 2.0,
                    }];
                    on_canvas(&plot.draw().unwrap());
                    plot.diagonal = true;
                    on_canvas(&plot.draw().unwrap());
                }
            }
        }
    }
}

#[test]
fn degenerate_bars_and_fields_are_drawn() {
    for kind in KINDS {
        for values in DEGENERATE {
            let bars = Bars {
                title: "title".into(),
                axis: Axis::new("axis", kind),
                series: vec![("one".into(), Colour::Ink), ("two".into(), Colour::Muted)],
                groups: values
                    .iter()
                    .map(|&v| Group {
                        name: "\u{202e}a name that is far too long for its place".into(),
                        values: vec![Some(v), None],
                    })
                    .collect(),
            };
            on_canvas(&bars.draw().unwrap());
            let rows = values
                .iter()
                .map(|&v| ("row".to_owned(), vec![Some(v), None, Some(v)]));
            let heat = Heat {
                title: "title".into(),
                axis: Axis::new("axis", kind),
                across: "layer".into(),
                columns: vec!["0".into(), "1".into()],
                rows: rows.collect(),
                height: ROW,
                range: None,
            };
            on_canvas(&heat.draw().unwrap());
        }
    }
}

#[test]
fn a_point_is_drawn_where_it_belongs() {
    let mut plot = Xy::new(
        "t",
        Axis::new("x", Kind::Whole),
        Axis::new("y", Kind::FromZero),
    );
    plot.series = vec![Series {
        name: "s".into(),
        colour: Colour::Thing(0),
        marker: Some(Marker::Circle),
        line: false,
        points: [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0)]
            .map(|(x, y)| Point::new(x, y))
            .into(),
    }];
    let drawing = plot.draw().unwrap();
    let numbers = |key: &str| -> Vec<f64> {
        let found = drawing.body.split(key).skip(1);
        found
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect()
    };
    let (x, y) = (numbers("cx=\""), numbers("cy=\""));
    assert_eq!((x.len(), y.len()), (3, 3), "{}", drawing.body);
    // Equal steps, to the right and up.
    assert!((x[1] - x[0] - (x[2] - x[1])).abs() <= 1.0 && x[1] > x[0]);
    assert!((y[0] - y[1] - (y[1] - y[2])).abs() <= 1.0 && y[0] > y[1]);
    assert!(drawing.body.contains("fill=\"var(--c0)\""));
    assert!(
        drawing.description.contains("y: 0 to 2"),
        "{}",
        drawing.description
    );
}

#[test]
fn tables_hold_what_plots_draw() {
    let plot = xy(Kind::Linear, Kind::Linear, &[1.5, 2.5], &[0.125, 0.375]);
    for together in [false, true] {
        let mut text = String::new();
        plot.table("caption", together).write(&mut text);
        for number in ["1.5", "2.5", "0.125", "0.375", "-0.875", "1.375"] {
            assert!(text.contains(number), "{number} in {text}");
        }
        assert!(text.contains("series 6") && text.contains("<caption>caption</caption>"));
    }
    let heat = Heat {
        title: "t".into(),
        axis: Axis::new("a", Kind::Linear),
        across: "layer".into(),
        columns: vec!["0".into(), "1".into()],
        rows: vec![("q".into(), vec![Some(0.25), None])],
        height: ROW,
        range: None,
    };
    let mut text = String::new();
    heat.table("caption", "").write(&mut text);
    assert!(
        text.contains("<th scope=\"row\" class=\"n\">0</th><td class=\"n\">0.25</td>"),
        "{text}"
    );
    assert!(
        text.contains("<th scope=\"row\" class=\"n\">1</th><td>–</td>"),
        "{text}"
    );
}

/// A point for each of many places and series: a table with a column for each would be as large as
/// their product.
#[test]
fn a_table_is_no_larger_than_its_points() {
    let mut plot = Xy::new(
        "t",
        Axis::new("x", Kind::Linear),
        Axis::new("y", Kind::Linear),
    );
    plot.series = (0..2000)
        .map(|i| Series {
            name: "s".into(),
            colour: Colour::Ink,
            marker: None,
            line: true,
            points: vec![Point::new(f64::from(i), 1.0)],
        })
        .collect();
    let mut text = String::new();
    plot.table("caption", true).write(&mut text);
    assert!(text.len() < 500_000, "{}", text.len());
}

/// Fields that share a legend have its colours, whatever of its range they have themselves.
#[test]
fn a_field_has_the_colours_of_its_range() {
    let of = |values: &[f64], range| {
        let heat = Heat {
            title: "t".into(),
            axis: Axis::new("a", Kind::Linear),
            across: "band".into(),
            columns: (0..values.len()).map(|band| band.to_string()).collect(),
            rows: vec![("q".into(), values.iter().copied().map(Some).collect())],
            height: 6,
            range: Some(range),
        };
        heat.draw().unwrap().body
    };
    let has = |body: &str, colour: &str| body.contains(&format!("fill=\"var({colour})\""));
    for (value, colour) in [(2.0, "--h0"), (5.0, "--h4"), (8.0, "--h8")] {
        let body = of(&[value], [2.0, 8.0]);
        assert!(has(&body, colour), "{value}: {body}");
    }
    assert!(has(&of(&[2.0, 4.0], [2.0, 4.0]), "--h8"));
    // A third of the way, though the largest of its own.
    let third = of(&[2.0, 4.0], [2.0, 8.0]);
    assert!(has(&third, "--h0") && has(&third, "--h3"), "{third}");
    assert!(!has(&third, "--h8"), "{third}");
}
