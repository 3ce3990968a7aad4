mod bits;
mod browser;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use htc_formats::gguf::Value as Metadata;
use htc_tests::material::words;
use htc_tests::{Scratch, TinyModel, htc};

use super::{compile, eval};

struct ReportInputs {
    scratch: Scratch,
    inputs: Vec<PathBuf>,
}

fn make_inputs(name: &str) -> ReportInputs {
    let scratch = Scratch::new();
    let model = scratch.file(&format!("{name}.gguf"), TinyModel::default().bytes());
    let text = scratch.file("words.txt", words(600));
    let folder = scratch.path("cache");
    let cache = folder.to_str().unwrap();
    let calibrate = [
        "--calibration",
        text.to_str().unwrap(),
        "--context",
        "32",
        "--cache",
        cache,
    ];
    let mut inputs = Vec::new();
    for (artifact, own) in [
        ("gp.htz", &["--rank", "8"][..]),
        ("grc.htz", &["--method", "shared-basis", "--ratio", "0.6"]),
    ] {
        let (path, report) = compile(&scratch, &model, artifact, &[own, &calibrate].concat());
        inputs.push(scratch.file(&format!("{artifact}.json"), report.to_string()));
        inputs.push(path);
    }
    let options = [
        "--context",
        "32",
        "--chunks",
        "4",
        "--reference",
        model.to_str().unwrap(),
    ];
    let result = eval(&inputs[1], &text, &options).run().json();
    inputs.push(scratch.file("eval.json", result.to_string()));
    let analysis = htc!["analyse", &model, "--json"]
        .args(calibrate)
        .run()
        .json();
    inputs.push(scratch.file("analysis.json", analysis.to_string()));
    ReportInputs { scratch, inputs }
}

/// Makes the page `name`, which must be the only one.
fn page(scratch: &Scratch, inputs: &[&Path], name: &str) -> String {
    let (page, analysis) = pages(scratch, inputs, name);
    assert!(analysis.is_none(), "a second page");
    page
}

/// Makes the page `name` and, where a report has an analysis beside it, the page of that.
fn pages(scratch: &Scratch, inputs: &[&Path], name: &str) -> (String, Option<String>) {
    let output = scratch.path(name);
    let other = scratch.path(&name.replace(".html", "-analysis.html"));
    let outcome = htc!["report"]
        .args(inputs)
        .arg("-o")
        .arg(&output)
        .run()
        .assert_ok();
    assert!(outcome.stdout.is_empty(), "{}", outcome.text());
    let analysis = other.exists().then(|| fs::read_to_string(&other).unwrap());
    let expected = match analysis {
        Some(_) => format!("the analysis: {}\n", other.display()),
        None => String::new(),
    };
    assert_eq!(outcome.stderr, expected);
    (fs::read_to_string(output).unwrap(), analysis)
}

#[derive(Debug, Default)]
struct Element {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
    text: String,
}

impl Element {
    fn attribute(&self, name: &str) -> Option<&str> {
        let mut own = self.attributes.iter().filter(|(key, _)| key == name);
        own.next().map(|(_, value)| value.as_str())
    }

    fn all<'a>(&'a self, name: &str) -> Vec<&'a Element> {
        let mut found = Vec::new();
        for child in &self.children {
            if child.name == name {
                found.push(child);
            }
            found.extend(child.all(name));
        }
        found
    }
}

/// Parses a page strictly: elements are properly nested, attributes quoted and unique, and `<`, `>`
/// and `&` escaped.
#[track_caller]
fn parse(page: &str) -> Element {
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    let mut open = vec![Element::default()];
    while let Some(at) = rest.find('<') {
        let (text, tag) = rest.split_at(at);
        let inside = open.last_mut().unwrap();
        if inside.name != "style" {
            assert!(!text.contains('>'), "a bare > in {text:?}");
            for part in text.split('&').skip(1) {
                let name = part.split(';').next().unwrap();
                assert!(
                    ["amp", "lt", "gt", "quot", "#39", "apos"].contains(&name),
                    "&{name}"
                );
            }
        }
        inside.text.push_str(text);
        let end = tag.find('>').expect("a tag ends");
        let inner = &tag[1..end];
        rest = &tag[end + 1..];
        if let Some(name) = inner.strip_prefix('/') {
            let element = open.pop().unwrap();
            assert_eq!(element.name, name, "closed in another order");
            let parent = open.last_mut().expect("something is open");
            parent.text.push_str(&element.text);
            parent.children.push(element);
            continue;
        }
        let closed = inner.ends_with('/');
        let inner = inner.trim_end_matches('/');
        let (name, mut listed) = inner.split_once([' ', '\n']).unwrap_or((inner, ""));
        let mut attributes: Vec<(String, String)> = Vec::new();
        while !listed.trim().is_empty() {
            let (key, value) = listed
                .trim_start()
                .split_once("=\"")
                .expect("a quoted attribute");
            let (value, more) = value.split_once('"').expect("a quote ends");
            assert!(
                attributes.iter().all(|(other, _)| other != key),
                "{key} twice in <{inner}>"
            );
            attributes.push((key.to_owned(), value.to_owned()));
            listed = more;
        }
        let element = Element {
            name: name.to_owned(),
            attributes,
            ..Element::default()
        };
        if closed || name == "meta" {
            open.last_mut().unwrap().children.push(element);
        } else {
            open.push(element);
        }
    }
    assert_eq!(open.len(), 1, "<{}> stays open", open.last().unwrap().name);
    open.pop().unwrap()
}

#[track_caller]
fn assert_sound(page: &str) -> Element {
    let root = parse(page);
    for word in [
        "http://", "https://", "<script", "url(", "@import", "src=", "/tmp", "NaN",
    ] {
        assert!(!page.contains(word), "{word} on the page");
    }
    let policy = root.all("meta");
    let policy = policy
        .iter()
        .filter(|m| m.attribute("http-equiv") == Some("Content-Security-Policy"));
    let policy: Vec<_> = policy.filter_map(|m| m.attribute("content")).collect();
    assert_eq!(policy.len(), 1);
    assert!(policy[0].contains("default-src 'none'"), "{policy:?}");
    assert_eq!(root.all("html")[0].attribute("lang"), Some("en"));
    assert_eq!(root.all("h1").len(), 1);
    let mut ids = BTreeSet::new();
    let mut stack = vec![&root];
    while let Some(element) = stack.pop() {
        if let Some(id) = element.attribute("id") {
            assert!(ids.insert(id), "{id} twice");
        }
        stack.extend(&element.children);
    }
    for link in root.all("a") {
        let target = link.attribute("href").unwrap();
        match target.strip_prefix('#') {
            Some(id) => assert!(ids.contains(id), "#{id} leads nowhere"),
            None => assert!(
                target.ends_with(".html") && !target.contains([':', '/']),
                "{target}"
            ),
        }
    }
    let figures = root.all("figure");
    let within: usize = figures.iter().map(|f| f.all("svg").len()).sum();
    assert_eq!(root.all("svg").len(), within, "a plot outside of a figure");
    for figure in figures {
        assert_eq!(figure.all("figcaption").len(), 1);
        let table = figure
            .all("details")
            .pop()
            .and_then(|d| d.all("table").pop());
        let rows = table.expect("a figure has its numbers").all("tbody")[0]
            .all("tr")
            .len();
        assert!(rows > 0, "{}", figure.all("figcaption")[0].text);
        for svg in figure.all("svg") {
            assert_eq!(svg.attribute("role"), Some("img"));
            assert!(svg.attribute("viewBox").is_some());
            assert!(svg.attribute("width").is_none() && svg.attribute("height").is_none());
            let label = svg.attribute("aria-label").unwrap();
            assert!(label.contains(": "), "{label}");
        }
    }
    for table in root.all("table") {
        assert_eq!(table.all("caption").len(), 1);
        let columns = table.all("thead")[0].all("th").len();
        for heading in table.all("thead")[0].all("th") {
            assert_eq!(heading.attribute("scope"), Some("col"));
        }
        for row in table.all("tbody")[0].all("tr") {
            assert_eq!(
                row.children.len(),
                columns,
                "{}",
                table.all("caption")[0].text
            );
            assert_eq!(row.children[0].attribute("scope"), Some("row"));
        }
    }
    root
}

fn sections(root: &Element) -> Vec<&str> {
    root.all("section")
        .into_iter()
        .filter_map(|s| s.attribute("id"))
        .collect()
}

#[test]
fn all_inputs_together_give_a_reproducible_page() {
    let made = make_inputs("model");
    let inputs: Vec<&Path> = made.inputs.iter().map(PathBuf::as_path).collect();
    fs::create_dir(made.scratch.path("again")).unwrap();
    let first = pages(&made.scratch, &inputs, "first.html");
    let second = pages(&made.scratch, &inputs, "again/first.html");
    assert!(first == second, "two runs differ");
    let (report, analysis) = (first.0, first.1.expect("a page of the analysis"));
    let root = assert_sound(&report);
    assert!(report.contains("<a class=\"other\" href=\"first-analysis.html\">"));
    assert!(analysis.contains("<a class=\"other\" href=\"first.html\">"));
    let of_analysis = [
        "spectra",
        "gauges",
        "phases",
        "depth",
        "dimension",
        "manifold",
        "outliers",
    ];
    assert_eq!(
        sections(&root).join(" "),
        "quality candidates bytes bits ranks errors predicted sinks time estimates notes origins",
    );
    let other = assert_sound(&analysis);
    for id in of_analysis {
        let sections = sections(&other);
        assert!(sections.contains(&id), "{id} in {sections:?}");
    }
    let origins = root
        .all("section")
        .into_iter()
        .find(|s| s.attribute("id") == Some("origins"));
    let told: Vec<&str> = origins
        .unwrap()
        .all("thead")
        .iter()
        .map(|h| h.text.trim())
        .collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(
        told[0].ends_with("gp.htz") && told[1].ends_with("grc.htz"),
        "{told:?}"
    );
}

#[test]
fn tables_have_the_numbers_of_the_report() {
    let made = make_inputs("model");
    let report: serde_json::Value =
        serde_json::from_slice(&fs::read(&made.inputs[0]).unwrap()).unwrap();
    let text = page(&made.scratch, &[&made.inputs[0]], "page.html");
    assert_sound(&text);
    for projection in report["plan"]["projections"].as_array().unwrap() {
        let Some(error) = projection["error"].as_f64() else {
            continue;
        };
        let digits = (3 - error.log10().floor() as i32).max(0) as usize;
        let told = format!("{error:.digits$}");
        let told = told.trim_end_matches('0');
        assert!(text.contains(&format!(">{told}</td>")), "{told} is missing");
    }
    assert!(text.contains(report["source_sha256"].as_str().unwrap()));
}

#[test]
fn each_kind_of_input_gives_a_page() {
    let made = make_inputs("model");
    for input in &made.inputs {
        let text = page(&made.scratch, &[input], "alone.html");
        assert_sound(&text);
        assert!(
            text.contains("More sections need the output of"),
            "{}",
            input.display()
        );
        fs::remove_file(made.scratch.path("alone.html")).unwrap();
    }
}

#[test]
fn files_are_recognised_by_content_and_names_are_escaped() {
    let scratch = Scratch::new();
    let name = "<script>alert(1)</script>";
    let model = scratch.file(
        "m.gguf",
        TinyModel::default()
            .with("general.name", Metadata::String(name.into()))
            .bytes(),
    );
    let (artifact, report) = compile(&scratch, &model, "a.htz", &["--rank", "4"]);
    let mut renamed = report;
    renamed["source"] = name.into();
    renamed["artifact"] = "\"><img src=x onerror=alert(1)>".into();
    renamed["notes"] = serde_json::json!(["]]><!-- <style>", "&amp;"]);
    let report = scratch.file("looks like an artifact.htz", renamed.to_string());
    let moved = scratch.path("looks like a report.json");
    fs::rename(artifact, &moved).unwrap();
    let text = page(&scratch, &[&report, &moved], "page.html");
    parse(&text);
    assert!(text.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(!text.contains("<script") && !text.contains("<img"));
}

#[test]
fn invalid_inputs_are_refused_with_a_remedy() {
    let made = make_inputs("model");
    let scratch = &made.scratch;
    let output = scratch.path("page.html");
    let model = scratch.path("model.gguf");
    let report = fs::read(&made.inputs[0]).unwrap();
    let artifact = fs::read(&made.inputs[1]).unwrap();
    let mut flipped = artifact.clone();
    flipped[100] ^= 1;
    let cases: [(&str, Vec<u8>, &[&str]); 8] = [
        (
            "empty.json",
            Vec::new(),
            &["htc compile --report", "htc eval --json"],
        ),
        (
            "words.json",
            b"some words".to_vec(),
            &["no JSON", "htc compile --report"],
        ),
        (
            "other.json",
            b"{\"a\": 1}".to_vec(),
            &["other keys", "htc compile --report"],
        ),
        (
            "half.json",
            report[..report.len() / 2].to_vec(),
            &["damaged", "make it anew"],
        ),
        (
            "half.htz",
            artifact[..artifact.len() / 2].to_vec(),
            &["half.htz"],
        ),
        ("flipped.htz", flipped, &["flipped.htz"]),
        ("deep.json", b"[".repeat(100_000), &["htc compile --report"]),
        (
            "nul.bin",
            vec![0; 4096],
            &["nul.bin", "htc compile --report"],
        ),
    ];
    for (name, bytes, words) in cases {
        let path = scratch.file(name, bytes);
        let run = htc!["report", &made.inputs[0], &path, "-o", &output]
            .with_hostile_limits()
            .run();
        run.assert_refused(1, words);
        assert!(!output.exists(), "{name}");
    }
    htc!["report", &model, "-o", &output]
        .run()
        .assert_refused(1, &["gguf", "compiled first"]);
    htc!["report", scratch.path("none"), "-o", &output]
        .run()
        .assert_refused(1, &["cannot be read"]);
    htc!["report", scratch.folder(), "-o", &output]
        .run()
        .assert_refused(1, &["cannot be read"]);
    htc!["report", &made.inputs[0]]
        .run()
        .assert_refused(2, &["--output"]);
    htc!["report", "-o", &output]
        .run()
        .assert_refused(2, &["INPUT"]);
}

#[test]
fn oversized_inputs_and_pages_are_refused() {
    let made = make_inputs("model");
    let report = &made.inputs[0];
    let output = made.scratch.path("page.html");
    let large = made.scratch.path("large.json");
    let mut json: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    json["notes"] = serde_json::json!(["<".repeat(9 << 20)]);
    fs::write(&large, json.to_string()).unwrap();
    let run = htc!["report", &large, "-o", &output];
    run.run().assert_refused(1, &["page", "33554432"]);
    let all = ["report"].iter().map(AsRef::as_ref);
    let all = all.chain([large.as_os_str(); 4]);
    let run = htc_tests::Htc::new().args(all).arg("-o").arg(&output).run();
    run.assert_refused(1, &["large.json", "33554432", "fewer"]);
    let file = fs::File::create(&large).unwrap();
    file.set_len(118_000_000).unwrap();
    let run = htc!["report", &large, "-o", &output];
    run.with_hostile_limits()
        .run()
        .assert_refused(1, &["large.json"]);
    assert!(!output.exists());
}

#[test]
fn existing_files_are_not_overwritten() {
    let made = make_inputs("model");
    let report = &made.inputs[0];
    let before = fs::read(report).unwrap();
    for options in [&[][..], &["--force"]] {
        let run = htc!["report", report, "-o", report].args(options).run();
        run.assert_refused(2, &["read", "another -o"]);
    }
    assert_eq!(fs::read(report).unwrap(), before);
    let output = made.scratch.file("page.html", "mine");
    htc!["report", report, "-o", &output]
        .run()
        .assert_refused(1, &["exists already", "--force"]);
    assert_eq!(fs::read(&output).unwrap(), b"mine");
    let _ = htc!["report", report, "-o", &output, "--force"]
        .run()
        .assert_ok();
    assert!(fs::read_to_string(&output).unwrap().ends_with("</html>\n"));
    let nowhere = made.scratch.path("no/page.html");
    htc!["report", report, "-o", &nowhere]
        .run()
        .assert_refused(1, &["cannot be written"]);
    let files = fs::read_dir(made.scratch.folder()).unwrap();
    for file in files {
        let name = file.unwrap().file_name();
        assert!(!name.to_string_lossy().contains("unfinished"), "{name:?}");
    }
}

#[test]
fn both_pages_are_written_or_none() {
    let made = make_inputs("model");
    let (report, analysis) = (&made.inputs[0], &made.inputs[5]);
    let output = made.scratch.path("page.html");
    let other = made.scratch.file("page-analysis.html", "mine");
    htc!["report", report, analysis, "-o", &output]
        .run()
        .assert_refused(1, &["page-analysis.html", "exists already", "--force"]);
    assert!(!output.exists());
    assert_eq!(fs::read(&other).unwrap(), b"mine");
    let input = made.scratch.path("input-analysis.html");
    fs::copy(analysis, &input).unwrap();
    let named = made.scratch.path("input.html");
    htc!["report", report, &input, "-o", &named, "--force"]
        .run()
        .assert_refused(2, &["input-analysis.html", "read", "another -o"]);
    assert!(!named.exists());
    htc!["report", report, analysis, "-o", "/dev/null", "--force"]
        .run()
        .assert_refused(2, &["/dev/null", "second page", "-o FILE.html"]);
    let _ = htc!["report", report, analysis, "-o", &output, "--force"]
        .run()
        .assert_ok();
    for (path, link) in [(&output, "page-analysis.html"), (&other, "page.html")] {
        let page = fs::read_to_string(path).unwrap();
        assert!(page.contains(&format!("href=\"{link}\"")), "{link}");
    }
    let alone = made.scratch.path("alone.html");
    let _ = htc!["report", analysis, "-o", &alone].run().assert_ok();
    let page = fs::read_to_string(&alone).unwrap();
    assert!(page.contains("<section id=\"spectra\"") && !page.contains("-analysis.html"));
    assert!(!made.scratch.path("alone-analysis.html").exists());
}

#[test]
fn evaluation_names_its_files() {
    let made = make_inputs("model");
    let result: serde_json::Value =
        serde_json::from_slice(&fs::read(&made.inputs[4]).unwrap()).unwrap();
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    assert_eq!(result["model"]["name"], "gp.htz");
    assert_eq!(result["model"]["bytes"], bytes(&made.inputs[1]));
    assert_eq!(result["reference"]["name"], "model.gguf");
    assert_eq!(
        result["reference"]["bytes"],
        bytes(&made.scratch.path("model.gguf"))
    );
    assert_eq!(result["text"], "words.txt");
}
