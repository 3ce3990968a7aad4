//! The page in headless Chromium: light and dark, wide and narrow.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{make_inputs, pages};

fn chromium() -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&folders)
        .flat_map(|folder| {
            ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name))
        })
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("skipped: no chromium on the path");
    }
    found
}

fn run(browser: &Path, profile: &Path, options: &[&str], file: &Path) -> (String, String) {
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ])
        .args([
            "--enable-logging=stderr",
            "--log-level=0",
            "--virtual-time-budget=2000",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(options)
        .arg(format!("file://{}", file.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr))
}

/// Measures in a frame of the given width.
fn measure_page(browser: &Path, folder: &Path, html: &Path, width: u32) -> serde_json::Value {
    let wrapper = folder.join(format!("wrapper-{width}.html"));
    let name = html.file_name().unwrap().to_str().unwrap();
    fs::write(
        &wrapper,
        format!(
            "<!DOCTYPE html><body style=margin:0><iframe id=f src=\"{name}\" style=\"border:0;width:{width}px;height:800px\"></iframe><pre id=o></pre><script>
            f.onload = () => {{
              const d = f.contentDocument, root = d.documentElement, w = f.contentWindow;
              d.querySelectorAll('details').forEach(e => e.open = true);
              const texts = [...d.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height);
              o.textContent = JSON.stringify({{
                width: root.scrollWidth, client: root.clientWidth,
                resources: w.performance.getEntriesByType('resource').map(e => e.name),
                svgs: [...d.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width),
                text: Math.min(...texts),
              }});
            }};
            </script>"
        ),
    )
    .unwrap();
    let (dom, complaints) = run(
        browser,
        &folder.join(format!("profile-{width}")),
        &[
            "--allow-file-access-from-files",
            "--dump-dom",
            "--window-size=1400,900",
        ],
        &wrapper,
    );
    let answer = dom
        .split("<pre id=\"o\">")
        .nth(1)
        .and_then(|rest| rest.split("</pre>").next());
    let answer = answer
        .filter(|a| !a.is_empty())
        .unwrap_or_else(|| panic!("no answer: {complaints}"));
    serde_json::from_str(answer).unwrap()
}

#[test]
fn pages_fit_every_screen_and_load_no_resources() {
    let Some(browser) = chromium() else { return };
    let made = make_inputs("model");
    let inputs: Vec<&Path> = made.inputs.iter().map(PathBuf::as_path).collect();
    pages(&made.scratch, &inputs, "page.html");
    let folder = made.scratch.folder();
    let pages = ["page.html", "page-analysis.html"].map(|name| made.scratch.path(name));
    for (html, width) in pages
        .iter()
        .flat_map(|html| [1200, 768, 360].map(|w| (html, w)))
    {
        let found = measure_page(&browser, folder, html, width);
        let number = |key: &str| found[key].as_f64().unwrap();
        assert!(
            number("width") <= number("client"),
            "{width}: scrolls sideways: {found}"
        );
        assert_eq!(found["resources"], serde_json::json!([]), "{width}");
        let plots = found["svgs"].as_array().unwrap();
        assert!(plots.len() > 10, "{width}: {}", plots.len());
        for plot in plots {
            let plot = plot.as_f64().unwrap();
            assert!(
                plot > 200.0 && plot <= f64::from(width),
                "{width}: a plot is {plot} wide"
            );
        }
        assert!(
            number("text") > 7.0,
            "{width}: text of {} pixels",
            number("text")
        );
    }
}

#[test]
fn page_renders_light_and_dark_without_errors() {
    let Some(browser) = chromium() else { return };
    let made = make_inputs("model");
    let inputs: Vec<&Path> = made.inputs.iter().map(PathBuf::as_path).collect();
    pages(&made.scratch, &inputs, "page.html");
    let mut pictures = Vec::new();
    for (scheme, setting) in [("light", 1), ("dark", 0)] {
        for width in [1200, 360] {
            let picture = made.scratch.path(&format!("{scheme}-{width}.png"));
            let options = [
                format!("--blink-settings=preferredColorScheme={setting}"),
                format!("--window-size={width},1600"),
                format!("--screenshot={}", picture.display()),
            ];
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let profile = made.scratch.path(&format!("profile-{scheme}-{width}"));
            let (_, said) = run(
                &browser,
                &profile,
                &options,
                &made.scratch.path("page.html"),
            );
            let complaints: Vec<&str> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
            assert!(complaints.is_empty(), "{complaints:?}");
            let bytes = fs::read(&picture).unwrap_or_else(|error| panic!("{error}: {said}"));
            assert!(
                bytes.starts_with(b"\x89PNG") && bytes.len() > 20_000,
                "{scheme} {width}"
            );
            pictures.push(bytes);
        }
    }
    assert!(
        pictures[0] != pictures[2] && pictures[1] != pictures[3],
        "light and dark are the same"
    );
}
