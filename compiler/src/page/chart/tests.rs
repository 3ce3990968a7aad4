use super::xy::tests::assert_inside;
use super::*;

fn heat(rows: Vec<Vec<Option<f64>>>, shared_range: Option<[f64; 2]>) -> Chart {
    let rows = rows.into_iter();
    let heat = Heat {
        columns_are: "layer",
        columns: (0..2).map(|column| column.to_string()).collect(),
        rows: rows.map(|values| ("q".to_owned(), values)).collect(),
        shared_range,
        ..Heat::default()
    };
    heat.draw()
}

#[test]
fn degenerate_bars_and_heat_maps_are_drawn() {
    for value in [
        0.0,
        -3.0,
        f64::MAX,
        f64::MIN,
        f64::NAN,
        f64::INFINITY,
        5e-324,
        1e18,
    ] {
        let axis = Axis::new("axis", Kind::Bytes);
        let series = [("one", Colour::Muted), ("two", Colour::Thing(1))];
        let groups = [(
            "a name that is far too long".into(),
            vec![Some(value), None],
        )];
        assert_inside(&bars("title", &axis, &series, &groups).svg.into_string());
        let rows = vec![vec![Some(value), None], vec![None, Some(1.0)]];
        assert_inside(&heat(rows, None).svg.into_string());
    }
}

#[test]
fn heat_maps_list_their_numbers() {
    let table = heat(vec![vec![Some(0.25), None]], None).table;
    let text = table.render("caption").into_string();
    for row in [
        "<th scope=\"row\" class=\"n\">0</th><td class=\"n\">0.25</td>",
        "<th scope=\"row\" class=\"n\">1</th><td>–</td>",
    ] {
        assert!(text.contains(row), "{text}");
    }
}

#[test]
fn heat_maps_have_the_colours_of_their_shared_range() {
    let colours = |values: [f64; 2], range| {
        let svg = heat(vec![values.map(Some).into()], Some(range))
            .svg
            .into_string();
        ["--h0", "--h3", "--h4", "--h8"].map(|c| svg.contains(&format!("fill=\"var({c})\"")))
    };
    assert_eq!(colours([2.0, 8.0], [2.0, 8.0]), [true, false, false, true]);
    assert_eq!(colours([5.0, 5.0], [2.0, 8.0]), [false, false, true, false]);
    assert_eq!(colours([2.0, 4.0], [2.0, 8.0]), [true, true, false, false]);
}
