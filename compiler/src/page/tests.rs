use std::path::Path;

use htc_formats::model::ProjectionKind;
use serde_json::{Value, json};

use super::input::Inputs;
use super::{analysis_page, main_page};
use crate::system::error::FileError;

fn page(inputs: &Inputs) -> Option<String> {
    main_page(inputs, None)
}

fn digest() -> String {
    "ab".repeat(32)
}

fn record(id: &str, error: Value) -> Value {
    json!({"id": id, "form": "low_rank", "rank": 4, "rows": 8, "cols": 8,
        "parameters_before": 64, "parameters_after": 64, "bytes_before": 256, "bytes_after": 128,
        "error": error, "note": null})
}

fn report() -> Value {
    let scores = json!({"perplexity": 12.5, "stderr": 0.25, "perplexity_interval": [11.5, 13.5],
        "perplexity_all": 13.0, "stderr_all": 0.2,
        "tokens": 1000, "tokens_all": 2000, "context": 64, "chunks": 3, "kl": 0.0625, "kl_stderr": 0.001,
        "kl_interval": [0.0592, 0.0658], "top1": 0.75, "top1_stderr": 0.01, "reference_perplexity": 12.0,
        "perplexity_ratio": 1.0417, "perplexity_ratio_interval": [1.0383, 1.0452]});
    json!({
        "source": "<script>alert(1)</script>.gguf", "source_sha256": digest(), "artifact": "a\"b&c.htz",
        "bytes": {"before": 4000, "after": 2000}, "bits_per_weight": 16.0, "request": {"budget": {"ratio": 0.5}, "allocator": "uniform"},
        "parameters": {"before": 1000, "after": 500}, "selected_parameters": {"before": 900, "after": 400},
        "selected_bytes": {"before": 900, "after": 400}, "ratio": 0.5,
        "projections": [{"projection": "q", "factorised": 2, "dense": 0, "rank": [4, 4],
            "bytes": {"before": 512, "after": 256}, "error": 0.1, "largest_error": 0.2}],
        "bases": {"count": 0, "bytes": 0}, "biases": {"count": 2, "parameters": 10, "bytes": 40},
        "treatment": {"gauge": "whiten", "sink": "append", "bias": true}, "notes": ["a note <b>"],
        "calibration": {"text": "t.txt", "text_sha256": digest(), "tokens": 10, "context": 5, "found_layers": 0,
            "layers": 2, "gauge": "whiten", "output_errors": [{"projection": "q", "error": 0.03125, "largest_error": 0.04}],
            "head": {"matrix": "output", "error": 0.0234375}},
        "measured_matrices": [{"matrix": "output", "error": 0.25, "output_error": 0.0234375, "predicted": 0.02, "norm": "output"}],
        "plan": {"method": "low-rank", "budget": {"ratio": 0.5}, "factor_type": "f16",
            "projections": [record("blk.0.attn_q", json!(0.1875)), record("blk.1.attn_q", json!(0.4375))], "bases": []},
        "threads": 2,
        "seconds": {"plan": 0.1, "read": 0.2, "calibrate": 0.3, "factorise": 0.4, "seal": 0.5, "total": 1.5},
        "measured": [
            {"layer": 0, "projection": "q", "error": 0.1875, "output_error": 0.0859375, "predicted": 0.171, "norm": "frobenius"},
            {"layer": 1, "projection": "q", "error": 0.4375, "output_error": 0.1015625, "predicted": 0.09, "norm": "output"},
            {"layer": 1, "projection": "k", "error": 0.5, "output_error": 0.6, "predicted": 0.0703125, "norm": "axiom"}],
        "axiom": [{"layer": 0, "before": 0.5, "after": 0.25, "trace": [0.5, 0.3, 0.25]}],
        "sinks": [{"layer": 0, "projections": ["q", "k", "v"], "coverage": 0.8125, "largest": 0.5, "random": 0.25, "appended": true}],
        "exempt": [{"layer": 1, "projections": ["q"], "channels": [3, 17]}],
        "trials": [{"gauge": "none", "sink": "off", "bias": false, "ratio": 0.5, "bytes": 2100, "chosen": false, "evaluation": scores},
            {"gauge": "whiten", "sink": "append", "bias": true, "ratio": 0.5, "bytes": 2000, "chosen": true, "evaluation": scores}],
        "quality": {"text": "held-out", "choosing_windows": 2, "evaluation": scores},
        "forecast": {"bytes": 2000, "peak_memory": 5000, "seconds": 2.0}, "peak_memory": 4000
    })
}

fn read(value: &Value) -> Result<Inputs, FileError> {
    read_text(&value.to_string())
}

fn read_text(text: &str) -> Result<Inputs, FileError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let mut inputs = Inputs::default();
    inputs.read(file.path()).map(|()| inputs)
}

#[test]
fn everything_in_a_report_is_on_its_page() {
    let text = page(&read(&report()).unwrap()).unwrap();
    for number in [
        "50 %",
        "0.1875",
        "0.4375",
        "0.08594",
        "0.1016",
        "0.171",
        "0.09",
        "0.8125",
        "0.0625",
        "1.042",
        "1.038 to 1.045",
        "0.0592 to 0.0658",
        "3, 17",
        "a note &lt;b&gt;",
        "0.03125",
        "0.02344",
        "0.07031",
        "chosen",
        "validation windows",
        "3 windows of 64 tokens of held-out, test split; 2 more are the validation split",
        "treatment, bias",
        "q k v: norm of the projection",
        "biases added",
    ] {
        assert!(text.contains(number), "{number} in {text}");
    }
    for id in [
        "quality",
        "candidates",
        "bytes",
        "ranks",
        "errors",
        "predicted",
        "estimates",
        "axiom",
        "sinks",
        "time",
        "notes",
        "origins",
    ] {
        assert!(text.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    assert!(!text.contains("<script"));
    assert!(
        text.contains("More sections need")
            && text.contains("htc analyse --calibration TEXT --json")
    );
}

/// The text of the verdict and of the tiles, before any section.
fn head_of(page: &str) -> &str {
    page.split("<nav").next().unwrap()
}

#[test]
fn the_verdict_comes_first_with_size_quality_and_intervals() {
    let text = page(&read(&report()).unwrap()).unwrap();
    let head = head_of(&text);
    for part in [
        "16 bits per weight: 2 kB instead of 4 kB (50 % of the source's bytes).",
        "Perplexity 1.0417 times the source's (95 % interval 1.0383 to 1.0452); KL divergence 0.0625 nats per token (95 % interval 0.0592 to 0.0658).",
        "<b>16</b> <span>bits per weight</span>",
        "<b>0.0625</b> <span>nats of KL divergence per token (95 % interval 0.0592 to 0.0658)</span>",
    ] {
        assert!(head.contains(part), "{part} in {head}");
    }
    assert!(!head.contains("One type"), "{head}");
}

#[test]
fn the_verdict_compares_with_the_nearest_file_in_one_type() {
    let mut report = report();
    let mut evaluation = report["quality"]["evaluation"].clone();
    let mut file = |dtype: &str, bytes: u64, kl: f64| {
        evaluation["kl"] = json!(kl);
        json!({"type": dtype, "bytes": bytes, "evaluation": evaluation})
    };
    report["beside"] = json!([file("q2_k", 1800, 0.5), file("q3_k", 2100, 0.25)]);
    let text = page(&read(&report).unwrap()).unwrap();
    let head = head_of(&text);
    for part in [
        "One type for all matrices, q3_k (2.1 kB, 5 % larger): KL divergence 0.25; this artifact: 0.0625.",
        "<b>0.25</b> <span>nats for q3_k (2.1 kB, 5 % larger)</span>",
    ] {
        assert!(head.contains(part), "{part} in {head}");
    }
    for (bytes, compared) in [(2001, "the same size"), (1900, "5 % smaller")] {
        report["beside"][1]["bytes"] = json!(bytes);
        let text = page(&read(&report).unwrap()).unwrap();
        assert!(head_of(&text).contains(compared), "{compared} in {text}");
    }
}

#[test]
fn the_stages_on_the_page_sum_to_the_total() {
    let mut report = report();
    report["seconds"] = json!({"plan": 34.0, "read": 0.25, "calibrate": 17.0, "factorise": 300.0,
        "measure": 160.0, "tune": 198.0, "seal": 0.0, "total": 709.25});
    let text = page(&read(&report).unwrap()).unwrap();
    let section = text.split("<section id=\"time\"").nth(1).unwrap();
    let section = section.split("</section>").next().unwrap();
    assert!(section.contains("709 s together"), "{section}");
    let rows = section.split("<th scope=\"row\">").skip(1).map(|row| {
        let (name, rest) = row.split_once("</th><td class=\"n\">").unwrap();
        let (seconds, _) = rest.split_once("</td>").unwrap();
        (name, seconds.parse::<f64>().unwrap())
    });
    let rows: Vec<(&str, f64)> = rows.collect();
    assert!(rows.contains(&("tune", 198.0)), "{rows:?}");
    assert_eq!(rows.len(), 6, "{rows:?}");
    let sum: f64 = rows.iter().map(|(_, seconds)| seconds).sum();
    assert!((sum - 709.25).abs() < 1e-9, "{rows:?}");
}

#[test]
fn experts_of_a_layer_are_drawn_as_one() {
    let mut report = report();
    let experts = [
        record("blk.0.ffn_gate.0", json!(0.1171875)),
        record("blk.0.ffn_gate.1", json!(0.2734375)),
        record("blk.1.ffn_gate.0", json!(0.5)),
    ];
    let records = report["plan"]["projections"].as_array_mut().unwrap();
    records.extend(experts);
    let measured = |expert: usize, output_error: f64| {
        let projection = format!("expert_gate.{expert}");
        json!({"layer": 0, "projection": projection, "error": 0.25, "output_error": output_error,
            "predicted": 0.01, "norm": "output"})
    };
    let all = report["measured"].as_array_mut().unwrap();
    all.extend([measured(0, 0.28125), measured(1, 0.34375)]);
    let sink = |expert: usize, coverage: f64| {
        json!({"layer": 0, "projections": [format!("expert_gate.{expert}")], "coverage": coverage,
            "largest": 0.5, "random": 0.25, "appended": false})
    };
    let all = report["sinks"].as_array_mut().unwrap();
    all.extend([sink(0, 0.53125), sink(1, 0.59375)]);
    let inputs = read(&report).unwrap();
    let data = super::data::PageData::new(&inputs);
    let [artifact] = &data.artifacts[..] else {
        panic!("{data:?}");
    };
    let kinds = artifact.projections();
    assert_eq!(kinds, [ProjectionKind::Q, ProjectionKind::Gate]);
    let counts = [0, 1].map(|layer| artifact.records_in(layer, ProjectionKind::Gate).count());
    assert_eq!(counts, [2, 1]);
    let text = page(&inputs).unwrap();
    // The means of both experts.
    for found in ["0.1953", "0.3125", "0.5625", "gate: norm of the projection"] {
        assert!(text.contains(found), "{found} in {text}");
    }
    assert!(text.contains("blk.0.ffn_gate.0 to blk.0.ffn_gate.1"));
    assert!(!text.contains("expert_gate"), "{text}");
}

#[test]
fn spectra_of_experts_are_drawn_as_one() {
    let spectrum = |projection: &str, half: f64, stable_rank: f64, rank: usize| {
        json!({"layer": 0, "projection": projection, "rows": 8, "cols": 8, "norm": 1.0, "largest": 0.5,
            "stable_rank": stable_rank, "ranks": [1, 1, 1, rank, 8], "tails": {"none": [0.5]},
            "curve": [[0, 0.0], [4, half], [8, 1.0]]})
    };
    let member =
        |projection: &str| json!({"projection": projection, "errors": [0.5], "excess": [1.5]});
    let analysis = |gates: &[Value]| {
        let group =
            json!({"layer": 0, "group": "gate_up", "ranks": [4], "members": [member("up")]});
        json!({"kind": "analysis", "version": 3, "model": "m", "source_sha256": digest(),
            "shape": {"architecture": "qwen3moe", "layers": 1, "width": 8, "heads": 1, "kv_heads": 1,
                "head_size": 8, "ffn": 8},
            "spectra": {"energies": [0.5, 0.75, 0.9, 0.95, 0.99], "fractions": [0.5],
                "projections": gates, "groups": [group]}})
    };
    let experts = [
        spectrum("q", 0.8125, 2.5, 6),
        spectrum("expert_gate.0", 0.5625, 3.125, 5),
        spectrum("expert_gate.1", 0.6875, 4.375, 8),
    ];
    let text = page(&read(&analysis(&experts)).unwrap()).unwrap();
    for found in ["0.625", "3.75", "6.5", "Mean of a layer’s experts."] {
        assert!(text.contains(found), "{found} in {text}");
    }
    for absent in ["expert_gate", "0.5625", "0.6875", "3.125", "4.375"] {
        assert!(!text.contains(absent), "{absent} in {text}");
    }
    let alone = read(&analysis(&experts[..1])).unwrap();
    let text = page(&alone).unwrap();
    assert!(!text.contains("experts"), "{text}");
    assert!(alone.have_only_analyses() && !alone.need_two_pages());

    let mut both = read(&report()).unwrap();
    assert!(!both.need_two_pages() && !both.have_only_analyses());
    both.analyses.extend(alone.analyses);
    assert!(both.need_two_pages());
    let main = main_page(&both, Some("a b#\"%.html".as_ref())).unwrap();
    let link = "href=\"a%20b%23%22%25.html\">Analysis of the model</a>";
    assert!(main.contains(link), "{main}");
    assert!(!main.contains("<section id=\"spectra\""), "{main}");
    let other = analysis_page(&both, "javascript:1".as_ref()).unwrap();
    let link = "href=\"javascript%3A1\">The report</a>";
    assert!(other.contains(link), "{other}");
    assert!(other.contains("<section id=\"spectra\"") && !other.contains("<section id=\"bytes\""));
}

#[test]
fn drafts_that_learn_are_drawn_beside_those_that_do_not() {
    let point = |text: &str, windows: u64, acceptance: f64, overlap: Value| {
        json!({"text": text, "windows": windows, "acceptance": acceptance, "standard_error": 0.01,
            "log_perplexity_ratio": 0.25, "log_perplexity_ratio_error": 0.02, "updates": 3, "distance": 0.5,
            "overlap": overlap, "residual": overlap, "residual_frozen": overlap.as_f64().map(|_| 0.83), "ms": 3})
    };
    let drift = |learns: &str, overlap: Value| {
        let points = [
            point("first.txt", 30, 0.625, overlap.clone()),
            point("first.txt", 60, 0.5, overlap.clone()),
            point("<b>.txt", 30, 0.375, overlap),
        ];
        json!({"drift": 1, "model": "m.gguf", "draft": "d.htz", "learns": learns, "points": points})
    };
    let mut inputs = read(&drift("off", Value::Null)).unwrap();
    inputs
        .drifts
        .extend(read(&drift("oja", json!(0.875))).unwrap().drifts);
    let text = page(&inputs).unwrap();
    for part in [
        "<section id=\"drift\"",
        "does not learn",
        "oja",
        "0.375",
        "0.875",
        "oja, with the initial bases",
        "0.83",
        "first.txt",
        "&lt;b&gt;.txt",
        "d.htz drafts for m.gguf",
        "90",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let figures = |inputs: &Inputs| page(inputs).unwrap().matches("<figure").count();
    let alone = read(&drift("off", Value::Null)).unwrap();
    assert_eq!((figures(&alone), figures(&inputs)), (3, 5));

    let mut damaged = drift("off", Value::Null);
    damaged["points"][1]["acceptance"] = json!("many");
    assert!(matches!(read(&damaged), Err(FileError::Damaged { .. })));
    let many = vec![point("t", 1, 0.5, Value::Null); super::input::MAX_DRIFT_POINTS + 1];
    damaged["points"] = json!(many);
    assert!(matches!(read(&damaged), Err(FileError::Damaged { .. })));
}

#[test]
fn a_report_without_what_is_optional_leaves_it_out() {
    let mut report = report();
    for key in [
        "measured",
        "axiom",
        "sinks",
        "exempt",
        "trials",
        "quality",
        "peak_memory",
    ] {
        report.as_object_mut().unwrap().remove(key);
    }
    report["calibration"] = Value::Null;
    let text = page(&read(&report).unwrap()).unwrap();
    for id in ["quality", "predicted", "axiom", "sinks"] {
        assert!(!text.contains(&format!("<section id=\"{id}\"")), "{id}");
    }
    assert!(text.contains("Its quality was not measured: run htc eval"));
}

#[test]
fn files_are_recognised_by_what_is_in_them() {
    let evaluation = json!({"model": {"name": "m", "bytes": 5}, "text": "t.txt", "perplexity": 2.0,
        "stderr": null, "perplexity_all": 2.5, "tokens": 3, "tokens_all": 6, "context": 4, "chunks": 1});
    assert_eq!(read(&evaluation).unwrap().evaluated.len(), 1);
    assert_eq!(read(&report()).unwrap().compiled.len(), 1);
    let unknown = [
        "",
        "\n",
        "[]",
        "5",
        "\"text\"",
        "{}",
        "{\"a\": 1}",
        "GGUF....",
        "\u{0089}",
        "just words",
        "{\"kind\": \"other\"}",
        "{\"kind\": 5}",
        "{\"format\": \"htc-plan\"}",
        "{\"peak_memory\": 5}",
    ];
    for text in unknown {
        let error = read_text(text).unwrap_err();
        assert!(
            matches!(error, FileError::Unsuitable { .. }),
            "{text}: {error}"
        );
        assert!(
            error.to_string().contains("htc compile --report FILE"),
            "{error}"
        );
    }
    let deep = format!("{}1{}", "{\"a\":".repeat(300), "}".repeat(300));
    assert!(matches!(
        read_text(&deep),
        Err(FileError::Unsuitable { .. })
    ));
    let mut cut = report().to_string();
    cut.truncate(cut.len() / 2);
    let damaged = [
        cut,
        "{".into(),
        "{\"kind\": \"analysis\"}".into(),
        json!({"plan": 1, "artifact": 2}).to_string(),
        json!({"perplexity": 2.0, "tokens": 3, "context": 4}).to_string(),
    ];
    for version in [1, 2, 4] {
        let analysis = json!({"kind": "analysis", "version": version, "model": "m"});
        let error = read(&analysis).unwrap_err();
        assert!(matches!(error, FileError::Version { .. }), "{error}");
        let said = format!("an analysis of another version, expected 3, found {version};");
        assert!(error.to_string().contains(&said), "{error}");
    }
    for text in damaged {
        let error = read_text(&text).unwrap_err();
        assert!(
            matches!(error, FileError::Damaged { .. }),
            "{text}: {error}"
        );
        assert!(error.to_string().contains("make it anew with"), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
    assert!(matches!(
        Inputs::default().read(Path::new("/no/such/file")),
        Err(FileError::Read { .. })
    ));
}

#[test]
fn a_layer_that_no_model_has_is_damage() {
    for layer in [4096_u64, 1 << 40, u64::MAX] {
        let mut report = report();
        report["axiom"][0]["layer"] = json!(layer);
        let error = read(&report).unwrap_err();
        assert!(
            error.to_string().contains(&format!("layer {layer}")),
            "{error}"
        );
        let mut report = self::report();
        let id = format!("blk.{layer}.attn_q");
        report["plan"]["projections"][0]["id"] = json!(id);
        let error = read(&report).unwrap_err();
        assert!(error.to_string().contains(&id), "{error}");
    }
    let mut report = report();
    report["axiom"][0]["trace"] = json!(vec![0.5; 5000]);
    assert!(matches!(read(&report), Err(FileError::Damaged { .. })));
}

#[test]
fn no_number_of_a_report_breaks_the_page() {
    let report = report();
    let mut places = Vec::new();
    numbers(&report, String::new(), &mut places);
    assert!(places.len() > 100);
    let odd = [
        json!(1e308),
        json!(-1e308),
        json!(-1),
        json!(0),
        json!(5e-324),
        json!(u64::MAX),
        Value::Null,
    ];
    for place in places {
        for value in &odd {
            let mut changed = report.clone();
            *changed.pointer_mut(&place).unwrap() = value.clone();
            if let Ok(inputs) = read(&changed) {
                let text = page(&inputs).unwrap();
                assert!(
                    text.ends_with("</html>\n") && text.len() < 1 << 20,
                    "{place}: {value}"
                );
            }
        }
    }
}

fn numbers(value: &Value, place: String, to: &mut Vec<String>) {
    match value {
        Value::Number(_) => to.push(place),
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                numbers(item, format!("{place}/{i}"), to);
            }
        }
        Value::Object(entries) => {
            for (key, item) in entries {
                numbers(item, format!("{place}/{key}"), to);
            }
        }
        _ => {}
    }
}
