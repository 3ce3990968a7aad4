//! Values of JSON documents by their paths, such as `pca/value`; missing ones are absent.

use serde_json::Value;

use super::chart::{Chart, Point, Series, over_layers};
use super::number::{bytes, number};
use super::scale::Axis;
use super::template::{ABSENT, Table};

/// Returns the value at a path, or null.
pub fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    if path.is_empty() {
        return value;
    }
    value.pointer(&format!("/{path}")).unwrap_or(&Value::Null)
}

pub fn num(value: &Value, path: &str) -> Option<f64> {
    at(value, path).as_f64()
}

/// Returns the text at a path, or an empty one.
pub fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

pub fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map_or(&[], Vec::as_slice)
}

/// Formats the value at a path for people.
pub fn show(value: &Value, path: &str) -> String {
    let key = path.rsplit('/').next().unwrap_or_default();
    let is_size = key.ends_with("bytes") || key.ends_with("memory");
    match at(value, path) {
        Value::Null => ABSENT.to_owned(),
        Value::Bool(yes) => if *yes { "yes" } else { "no" }.to_owned(),
        Value::Number(n) => {
            let format = if is_size { bytes } else { number };
            n.as_f64().map_or(ABSENT.to_owned(), format)
        }
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let interval = items.len() == 2 && key.ends_with("interval");
            let items: Vec<String> = items.iter().map(|item| show(item, "")).collect();
            if items.is_empty() {
                return ABSENT.to_owned();
            }
            items.join(if interval { " to " } else { ", " })
        }
        Value::Object(entries) => {
            let entries = entries.iter().filter(|(_, value)| !value.is_null());
            let entries = entries.map(|(key, value)| match value {
                Value::String(text) => format!("{key} “{text}”"),
                _ => format!("{key} {}", show(value, "")),
            });
            entries.collect::<Vec<_>>().join(" ")
        }
    }
}

/// Replaces each path in braces by the value at it.
pub fn fill(template: &str, value: &Value) -> String {
    let mut parts = template.split(['{', '}']);
    let mut text = parts.next().unwrap_or_default().to_owned();
    while let Some(path) = parts.next() {
        text += &show(value, path);
        text += parts.next().unwrap_or_default();
    }
    text
}

/// Items by the name of their group.
pub type Group<'a> = (&'a str, Vec<&'a Value>);

/// Groups items by their keys, in the order of the first of each group.
pub fn group_by_key<K: PartialEq, T>(items: impl IntoIterator<Item = (K, T)>) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for (key, item) in items {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, items)) => items.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

/// Creates a table of items; a column for each path.
pub fn table<'a>(items: impl IntoIterator<Item = &'a Value>, columns: &[(&str, &str)]) -> Table {
    let head: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = Table::new(&head);
    let row = |item| columns.iter().map(|(_, path)| show(item, path)).collect();
    table.rows = items.into_iter().map(row).collect();
    table
}

/// Creates a table of the values at and below some paths, separated by spaces.
pub fn properties(name: &str, value: &Value, paths: &str) -> Table {
    let mut table = Table::new(&["property", name]);
    for path in paths.split_whitespace() {
        add(&mut table, path, at(value, path));
    }
    table
}

fn add(table: &mut Table, path: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::Object(entries) => {
            for (key, value) in entries {
                add(table, &format!("{path}/{key}"), value);
            }
        }
        value => {
            let name = path.replace('/', ", ").replace('_', " ");
            let key = path.rsplit('/').next().unwrap_or_default();
            let wrapped = serde_json::json!({ key: value });
            table.rows.push(vec![name, show(&wrapped, key)]);
        }
    }
}

/// Creates a point from the values at two paths, with the interval at a third.
pub fn point(item: &Value, [x, y, interval]: [&str; 3]) -> Option<Point> {
    let ends = at(item, interval);
    let ends = num(ends, "0").zip(num(ends, "1"));
    Some(Point::new(num(item, x)?, num(item, y)?).within(ends))
}

/// Creates the points of items, each as [`point`] does.
pub fn points<'a>(items: impl IntoIterator<Item = &'a Value>, paths: [&str; 3]) -> Vec<Point> {
    let points = items.into_iter().filter_map(|item| point(item, paths));
    points.collect()
}

/// Creates a line for each name, in the colour and with the marker of its position.
pub fn lines<'a>(
    names: impl IntoIterator<Item = &'a str>,
    points: impl Fn(&str) -> Vec<Point>,
) -> impl Iterator<Item = Series> {
    let names = names.into_iter().enumerate();
    names.map(move |(number, name)| Series::line(name, number, points(name)))
}

/// Draws a series over layers for each name with its paths.
pub fn layers(items: &[Value], title: &str, quantity: &str, series: &[[&str; 3]]) -> Chart {
    let series = series.iter().enumerate();
    let series = series.map(|(number, [name, y, interval])| {
        Series::line(name, number, points(items, ["layer", y, interval]))
    });
    over_layers(title, Axis::linear(quantity), series)
}

/// Creates the points of a list of numbers.
pub fn indexed(value: &Value, path: &str) -> Vec<Point> {
    let values = list(value, path).iter().enumerate();
    let points = values.filter_map(|(at, v)| Some(Point::new(at as f64, v.as_f64()?)));
    points.collect()
}
