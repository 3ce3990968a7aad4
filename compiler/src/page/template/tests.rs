use super::super::chart::{Heat, Point, Series, Xy};
use super::super::scale::{Axis, Kind};
use super::*;

fn page(content: Markup) -> Page {
    let (id, title, lead) = ("s", "Some section", "");
    Page {
        sections: vec![Section {
            id,
            title,
            lead,
            content,
        }],
        ..Page::default()
    }
}

#[test]
fn text_is_escaped_everywhere() {
    let hostile = || "<script>\"&\u{202e}\u{0}".to_owned();
    let axis = || Axis::new(hostile(), Kind::Linear);
    let point = Point::new(1.0, 2.0).labelled(hostile());
    let series = vec![Series::line(&hostile(), 0, [point])];
    let heat = Heat {
        title: hostile(),
        quantity: hostile(),
        columns: vec![hostile()],
        rows: vec![(hostile(), vec![Some(1.0)])],
        tips: vec![vec![hostile()]],
        ..Heat::default()
    };
    let charts = [
        Xy::new(hostile(), axis(), axis(), series).draw(),
        heat.draw(),
    ];
    let table = Table {
        head: vec![hostile()],
        rows: vec![vec![hostile()]],
    };
    let mut page = page(html! {
        (figure(&hostile(), &hostile(), charts))
        (table.render(&hostile()))
        (list(&hostile(), &[hostile()]))
    });
    page.title = hostile();
    page.verdict = vec![hostile()];
    page.footer = vec![hostile()];
    page.tiles = vec![(hostile(), hostile())];
    page.links = vec![Link::new(&hostile(), hostile().as_ref())];
    let text = page.render().unwrap();
    assert!(
        !text.contains("<script") && !text.contains("\"&\u{fffd}"),
        "{text}"
    );
    assert!(!text.contains(['\u{202e}', '\u{0}']));
    assert!(text.matches("&lt;script&gt;").count() >= 20, "{text}");
}

#[test]
fn charts_share_a_legend_only_where_their_colours_agree() {
    let chart = |name: &str| {
        let series = [Series::line(name, 0, [Point::new(1.0, 2.0)])];
        Xy::new(name, Axis::linear("x"), Axis::linear("y"), series).draw()
    };
    let legends = |names: [&str; 2]| {
        let text = figure("caption", "", names.map(chart)).into_string();
        text.matches("<ul class=\"keys\"").count()
    };
    assert_eq!(legends(["one", "one"]), 1);
    assert_eq!(legends(["one", "two"]), 2);
}

#[test]
fn a_page_that_is_too_large_is_refused() {
    let notes = |count: usize| list("l", &vec!["<".repeat(1 << 20); count]);
    assert!(page(notes(2)).render().is_some());
    assert!(page(notes(9)).render().is_none());
}

#[test]
fn a_section_without_content_is_left_out() {
    let empty = page(list("l", &[])).render().unwrap();
    assert!(!empty.contains("Some section"));
}
