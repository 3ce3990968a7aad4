//! `htc schema`: the JSON that commands write conforms to the published schemas, which describe
//! every property.

use std::collections::BTreeSet;

use htc_tests::material::words;
use htc_tests::{Scratch, TinyModel, htc};
use serde_json::Value;

use super::{bench, compile};

/// The part of JSON Schema that the published schemas use.
struct Schema {
    root: Value,
}

impl Schema {
    fn of(document: &str) -> Schema {
        let root = htc!["schema", document].run().json();
        assert_eq!(
            root["$schema"], "https://json-schema.org/draft/2020-12/schema",
            "{document}"
        );
        Schema { root }
    }

    /// The schemas that apply to the same value: itself, its reference and its parts.
    fn parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let mut parts = vec![schema];
        if let Some(reference) = schema["$ref"].as_str() {
            let pointer = reference.strip_prefix('#').unwrap();
            parts.extend(self.parts(self.root.pointer(pointer).expect(reference)));
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            let some = schema[key].as_array().into_iter().flatten();
            parts.extend(some.flat_map(|part| self.parts(part)));
        }
        parts
    }

    fn check(&self, schema: &Value, value: &Value, place: &str) -> Result<(), String> {
        if schema == &Value::Bool(true) {
            return Ok(());
        }
        let wrong = |what: &str| Err(format!("{place}: {what}: {value:.100} by {schema:.300}"));
        if let Some(reference) = schema["$ref"].as_str() {
            let of = self.root.pointer(&reference[1..]).expect(reference);
            self.check(of, value, place)?;
        }
        for all in schema["allOf"].as_array().into_iter().flatten() {
            self.check(all, value, place)?;
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(some) = schema[key].as_array() {
                let checked: Vec<_> = some
                    .iter()
                    .map(|one| self.check(one, value, place))
                    .collect();
                if checked.iter().all(Result::is_err) {
                    return Err(format!("{checked:?}"));
                }
            }
        }
        let of_type = |name: &Value| match name.as_str().unwrap() {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{other}"),
        };
        let fits = match &schema["type"] {
            Value::Null => true,
            Value::Array(names) => names.iter().any(of_type),
            name => of_type(name),
        };
        if !fits {
            return wrong("type");
        }
        if schema["enum"]
            .as_array()
            .is_some_and(|all| !all.contains(value))
        {
            return wrong("no such value");
        }
        if schema.get("const").is_some_and(|only| only != value) {
            return wrong("another value");
        }
        for key in schema["required"].as_array().into_iter().flatten() {
            if value.get(key.as_str().unwrap()).is_none() {
                return wrong(&format!("{key} is missing"));
            }
        }
        let items = value.as_array().into_iter().flatten().enumerate();
        for (index, item) in items {
            let first = schema["prefixItems"].get(index);
            if let Some(schema) = first.or(schema.get("items")).filter(|s| s.is_object()) {
                self.check(schema, item, &format!("{place}/{index}"))?;
            }
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            let schema = schema["properties"].get(key);
            if let Some(schema) = schema {
                self.check(schema, value, &format!("{place}/{key}"))?;
            }
        }
        Ok(())
    }

    /// Checks that every property is described, at any depth.
    fn check_described(&self, schema: &Value, value: &Value, place: &str) {
        let parts = self.parts(schema);
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            for part in &parts {
                if let Some(schema) = part["prefixItems"].get(index).or(part.get("items")) {
                    self.check_described(schema, item, &format!("{place}/{index}"));
                }
            }
        }
        let is_open = |part: &&Value| {
            let others = part.get("additionalProperties");
            **part == true || others.is_some_and(|others| others != false)
        };
        if parts.iter().any(is_open) {
            return;
        }
        for (key, value) in value.as_object().into_iter().flatten() {
            let described: Vec<_> = parts
                .iter()
                .filter_map(|part| part["properties"].get(key))
                .collect();
            assert!(!described.is_empty(), "{place}/{key} is not described");
            // Of several alternatives, the one that the value conforms to.
            let conforms = |schema: &&&Value| self.check(schema, value, place).is_ok();
            let schema = described.iter().find(conforms).unwrap_or(&described[0]);
            self.check_described(schema, value, &format!("{place}/{key}"));
        }
    }
}

#[track_caller]
fn assert_conforms(document: &str, value: &Value) {
    let schema = Schema::of(document);
    schema.check(&schema.root, value, document).unwrap();
    schema.check_described(&schema.root, value, document);
    let required = schema.root["required"].as_array();
    for key in required
        .into_iter()
        .flatten()
        .map(|key| key.as_str().unwrap())
    {
        let mut without = value.clone();
        without.as_object_mut().unwrap().remove(key);
        let checked = schema.check(&schema.root, &without, document);
        assert!(checked.is_err(), "{document} without {key}");
    }
}

#[test]
fn written_json_conforms_to_its_schema() {
    let scratch = Scratch::new();
    let tiny = TinyModel {
        ffn: 192,
        ..TinyModel::default()
    };
    let model = scratch.file("model.gguf", tiny.bytes());
    let text = scratch.file("text.txt", words(2000));
    let calibration = ["--calibration", text.to_str().unwrap(), "--context", "32"];
    let options = [
        &["--method", "shared-basis", "--rank", "32"][..],
        &calibration,
    ]
    .concat();
    let cache = ["--cache", scratch.path("cache").to_str().unwrap()].map(str::to_owned);
    let options: Vec<&str> = options
        .into_iter()
        .chain(cache.iter().map(String::as_str))
        .collect();
    let output = scratch.path("other.htz");
    let forecast = htc![
        "compile",
        &model,
        "-o",
        &output,
        "--dry-run",
        "--report",
        "json"
    ];
    assert_conforms("forecast", &forecast.args(&options).run().json());
    let (artifact, report) = compile(&scratch, &model, "model.htz", &options);
    assert_conforms("report", &report);
    let analysis = htc!["analyse", &model, "--json"]
        .args(calibration)
        .args(&cache);
    assert_conforms("analysis", &analysis.run().json());
    let eval = htc!["eval", &artifact, "--text", &text, "--context", "32"];
    let eval = eval.args(["--chunks", "3", "--json", "--reference"]);
    assert_conforms("evaluation", &eval.arg(&model).run().json());
    assert_conforms(
        "inspection",
        &htc!["inspect", &artifact, "--json"].run().json(),
    );
    assert_conforms(
        "inspection",
        &htc!["inspect", &model, "--json"].run().json(),
    );
    assert_conforms(
        "verification",
        &htc!["verify", &artifact, "--json"].run().json(),
    );
    let probe = htc!["verify", &artifact, "--json", "--probe", "--layer", "0"];
    assert_conforms("verification", &probe.run().json());
    let tokens = htc!["tokenize", &model, "--text", &text, "--json"];
    assert_conforms("tokens", &tokens.run().json());
    let clean = htc!["clean", scratch.folder(), "--json", "--dry-run"].args(&cache);
    assert_conforms("cleaning", &clean.run().json());
    let exported = scratch.path("exported.gguf");
    let export = htc!["export", &artifact, "--json", "-o", &exported];
    assert_conforms("export", &export.run().json());
    let folder = scratch.path("exported");
    htc!["export", &artifact, "--to-safetensors", &folder]
        .run()
        .assert_ok();
    assert_conforms(
        "inspection",
        &htc!["inspect", &folder, "--json"].run().json(),
    );
    let events = scratch.path("events.ndjson");
    let run = htc![
        "run",
        &artifact,
        "-p",
        "the cat sat on a",
        "-n",
        "8",
        "--temp",
        "0"
    ];
    let run = run.args(["--ignore-eos", "--thermal", "60,80", "--json"]);
    let run = run.args(["--sensor", "sim:start=70,time=1000000", "--events"]);
    assert_conforms("run", &run.arg(&events).run().json());
    for line in std::fs::read_to_string(&events).unwrap().lines() {
        assert_conforms("event", &serde_json::from_str(line).unwrap());
    }
}

#[test]
fn benchmark_conforms_to_its_schema() {
    let scratch = Scratch::new();
    let model = bench::tiny(&scratch, "model.gguf", 1);
    let bench =
        bench::bench(&model).args(["--pairs", "2", "--prompts", "coding", "--warm-up", "0"]);
    assert_conforms(
        "benchmark",
        &bench.arg("--against").arg(&model).run().json(),
    );
}

#[test]
fn every_document_has_a_schema_with_a_title() {
    let help = htc!["schema", "--help"].run().assert_ok();
    let documents: BTreeSet<String> = help
        .text()
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- ")?.split_once(':'))
        .map(|(name, _)| name.to_owned())
        .collect();
    assert!(documents.len() > 10, "{documents:?}");
    for document in documents {
        let Schema { root } = Schema::of(&document);
        assert!(root.get("title").is_some(), "{document}: {root}");
    }
}
