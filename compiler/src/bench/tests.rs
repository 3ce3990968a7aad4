use std::cell::RefCell;

use super::gates::{self, Outcome};
use super::record::{Conditions, ModelRecord, Phase, Record};
use super::runner::{RunWatch, Timing};
use super::*;
use crate::system::error::FileError;

struct ScriptedRunner<'a> {
    name: &'static str,
    milliseconds: Vec<u64>,
    context: Option<usize>,
    log: &'a RefCell<Vec<(&'static str, Task)>>,
    runs: usize,
}

impl<'a> ScriptedRunner<'a> {
    fn new(
        name: &'static str,
        milliseconds: &[u64],
        log: &'a RefCell<Vec<(&'static str, Task)>>,
    ) -> ScriptedRunner<'a> {
        ScriptedRunner {
            name,
            milliseconds: milliseconds.to_vec(),
            context: None,
            log,
            runs: 0,
        }
    }
}

impl Runner for ScriptedRunner<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn context(&self) -> Option<usize> {
        self.context
    }

    fn prepare(&mut self, _: Task) -> Result<(), BenchError> {
        Ok(())
    }

    fn run(&mut self, task: Task, watch: RunWatch) -> Result<Timing, BenchError> {
        (watch.first_token)()?;
        self.log.borrow_mut().push((self.name, task));
        let time = self.milliseconds[self.runs % self.milliseconds.len()];
        self.runs += 1;
        Ok(Timing {
            prompt_tokens: 100,
            tokens: task.tokens(),
            prefill: Duration::from_millis(2 * time),
            decode: Duration::from_millis(if task.tokens() > 1 { time } else { 0 }),
        })
    }
}

fn protocol(pairs: usize) -> Protocol {
    Protocol {
        pairs,
        warm_up: 1,
        cool_down: Duration::ZERO,
        prompts: vec![PromptKind::Coding, PromptKind::Factual],
        tokens: vec![11, 21],
        contexts: Vec::new(),
    }
}

fn control<'a>(report: &'a dyn Fn(Step), cancel: &'a CancellationToken) -> RunControl<'a> {
    RunControl { report, cancel }
}

fn measure(
    protocol: &Protocol,
    subject: &mut ScriptedRunner,
    baseline: Option<&mut ScriptedRunner>,
) -> BenchResults {
    let cancel = CancellationToken::default();
    let baseline = baseline.map(|b| b as &mut dyn Runner);
    run(
        subject,
        baseline,
        protocol,
        control(&|_| {}, &cancel),
        &mut NoSensors,
    )
    .unwrap()
}

fn record(measured: BenchResults) -> Record {
    let measuree = |name: &str| ModelRecord {
        name: name.into(),
        bytes: 7,
        engine: "none".into(),
        fraction: None,
        touched_bytes: None,
    };
    let conditions = Conditions {
        date: "2026-01-01T00:00:00Z".into(),
        command: vec!["htc".into()],
        machine: machine::Machine::detect(),
        load: None,
        device: "none".into(),
        device_bytes: None,
        threads: 1,
        kv_type: "f16",
        warm_up: 1,
        cool_down_seconds: 0.0,
        seed: 0,
        bootstrap_samples: statistics::SAMPLES,
        sensor: None,
    };
    let baseline = Some(measuree("b"));
    Record::new(
        conditions,
        measuree("a"),
        baseline,
        measured,
        None,
        Vec::new(),
    )
}

#[test]
fn pairs_take_tasks_in_turn_and_alternate_who_is_first() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[100], &log);
    let mut baseline = ScriptedRunner::new("baseline", &[200], &log);
    let measured = measure(&protocol(8), &mut subject, Some(&mut baseline));
    let log = log.borrow();
    assert_eq!(log.len(), 2 * 9);
    assert_eq!(log[0].1.tokens(), 21);
    let first: Vec<_> = log[2..]
        .chunks(2)
        .map(|pair| (pair[0].0, pair[0].1.kind().unwrap(), pair[0].1.tokens()))
        .collect();
    use PromptKind::{Coding, Factual};
    let (s, b) = ("subject", "baseline");
    assert_eq!(
        first,
        [
            (s, Coding, 11),
            (b, Factual, 11),
            (s, Coding, 21),
            (b, Factual, 21),
            (b, Coding, 11),
            (s, Factual, 11),
            (b, Coding, 21),
            (s, Factual, 21),
        ]
    );
    assert!(
        log[2..]
            .chunks(2)
            .all(|pair| pair[0].1 == pair[1].1 && pair[0].0 != pair[1].0)
    );
    let pair = &measured.pairs[1];
    assert!(!pair.subject_first && pair.tokens == 11);
    let of = |run: &record::Run| {
        [run.prefill, run.decode.unwrap(), run.end_to_end.unwrap()].map(f64::round)
    };
    assert_eq!(of(&pair.subject), [500.0, 100.0, 37.0]);
    assert_eq!(of(pair.baseline.as_ref().unwrap()), [250.0, 50.0, 18.0]);
    let record = record(measured);
    for phase in Phase::ALL {
        let comparison = record.phases.get(phase).unwrap().comparison.unwrap();
        assert!(
            (comparison.ratio - 2.0).abs() < 1e-12 && (comparison.time_ratio - 0.5).abs() < 1e-12
        );
    }
}

#[test]
fn left_out_lists_combinations_without_a_pair() {
    assert_eq!(protocol(3).left_out(), [(PromptKind::Factual, 21)]);
    assert_eq!(protocol(4).left_out(), []);
    assert_eq!(protocol(9).left_out(), []);
}

#[test]
fn a_full_context_has_no_decode() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[100], &log);
    subject.context = Some(160);
    let mut of = protocol(2);
    of.prompts.clear();
    of.contexts = vec![128, 129, 130];
    let measured = measure(&of, &mut subject, None);
    assert!(measured.pairs.is_empty());
    let tokens: Vec<usize> = measured
        .contexts
        .iter()
        .map(|c| c.pairs[0].tokens)
        .collect();
    assert_eq!(tokens, [TOKENS_AFTER_CONTEXT, TOKENS_AFTER_CONTEXT, 1]);
    let record = record(measured);
    assert_eq!(record.phases.prefill, None);
    assert!(record.context[1].phases.decode.is_some());
    let full = &record.context[2].phases;
    assert!(full.prefill.is_some() && full.decode.is_none() && full.end_to_end.is_none());
}

struct RecordingSensors(Vec<String>);

impl Sensors for RecordingSensors {
    fn idle(&mut self, _: &CancellationToken) -> Result<(), BenchError> {
        self.0.push("idle".into());
        Ok(())
    }
    fn start(&mut self, side: Side) -> Result<(), BenchError> {
        self.0.push(format!("{side:?}"));
        Ok(())
    }
    fn mark(&mut self) -> Result<(), BenchError> {
        self.0.push("mark".into());
        Ok(())
    }
    fn stop(&mut self) -> Result<Option<EnergyReading>, BenchError> {
        let joules = match &self.0[self.0.len() - 2][..] {
            "Subject" => 5.5,
            _ => 11.0,
        };
        self.0.push("stop".into());
        Ok(Some(EnergyReading {
            joules: Some(joules),
            decode_joules: Some(0.5 * joules),
            ..EnergyReading::default()
        }))
    }
}

#[test]
fn sensor_readings_are_recorded_per_run_and_unknown_values_are_null() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[100], &log);
    let mut baseline = ScriptedRunner::new("baseline", &[100], &log);
    let cancel = CancellationToken::default();
    let mut sensors = RecordingSensors(Vec::new());
    let measured = run(
        &mut subject,
        Some(&mut baseline),
        &protocol(2),
        control(&|_| {}, &cancel),
        &mut sensors,
    )
    .unwrap();
    let of = |side| [side, "mark", "stop"];
    let (s, b) = (of("Subject"), of("Baseline"));
    let expected = [&["idle"][..], &s, &b, &s, &b, &b, &s].concat();
    assert_eq!(sensors.0, expected);
    let run = serde_json::to_value(measured.pairs[0].subject).unwrap();
    let found = ["joules", "tokens_per_joule", "decode_tokens_per_joule"].map(|k| run[k].as_f64());
    assert_eq!(found, [Some(5.5), Some(2.0), Some(10.0 / 2.75)]);
    for absent in [
        "net_joules",
        "net_tokens_per_joule",
        "power_watts",
        "temperature_celsius",
    ] {
        assert!(run.as_object().unwrap()[absent].is_null(), "{absent}");
    }
    let found = record(measured.clone());
    let energy = found.energy.as_ref().unwrap();
    let ratio = energy
        .tokens_per_joule
        .as_ref()
        .unwrap()
        .comparison
        .unwrap();
    assert_eq!(ratio.ratio, 2.0);
    assert_eq!(energy.net_tokens_per_joule, None);
    let mut holed = measured;
    holed.pairs[0].baseline.as_mut().unwrap().energy = Some(Default::default());
    let energy = record(holed).energy.unwrap();
    let quantity = energy.tokens_per_joule.unwrap();
    assert_eq!(quantity.subject.count, 2);
    assert_eq!(quantity.baseline.unwrap().count, 1);
    assert_eq!(quantity.comparison.unwrap().interval, None);
    let without = measure(&protocol(1), &mut subject, None);
    let run = serde_json::to_value(without.pairs[0].subject).unwrap();
    assert!(run.get("joules").is_none() && run.get("tokens_per_joule").is_none());
    assert_eq!(record(without).energy, None);
}

#[test]
fn cancellation_stops_before_the_next_run() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[100], &log);
    let cancel = CancellationToken::default();
    let tell = |step: Step| {
        assert_eq!(step.total, 5);
        if step.done == 2 {
            cancel.cancel();
        }
    };
    let found = run(
        &mut subject,
        None,
        &protocol(4),
        control(&tell, &cancel),
        &mut NoSensors,
    );
    assert!(matches!(found, Err(BenchError::Cancelled(_))));
    assert_eq!(log.borrow().len(), 2);
}

#[test]
fn a_run_that_takes_no_time_is_an_error() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[0], &log);
    let cancel = CancellationToken::default();
    let found = run(
        &mut subject,
        None,
        &protocol(1),
        control(&|_| {}, &cancel),
        &mut NoSensors,
    );
    assert!(matches!(found, Err(BenchError::NoTime { .. })));
}

#[test]
fn contamination_note_names_the_disturbed_side() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new(
        "subject",
        &[100, 101, 100, 180, 101, 100, 150, 101, 102],
        &log,
    );
    let mut baseline = ScriptedRunner::new("baseline", &[100, 101, 102], &log);
    let found = record(measure(&protocol(8), &mut subject, Some(&mut baseline)));
    assert!(
        found
            .notes
            .iter()
            .any(|note| note.starts_with("decode") || note.starts_with("prefill")),
        "{:?}",
        found.notes
    );
    assert!(
        found
            .notes
            .iter()
            .all(|note| note.contains("the subject's relative variance"))
    );
}

fn gates_of(text: &str) -> Result<Vec<gates::Gate>, BenchError> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    gates::read(file.path())
}

#[test]
fn built_in_gates_match_the_paper() {
    let found = gates::read(std::path::Path::new("paper")).unwrap();
    let descriptions: Vec<String> = found
        .iter()
        .map(|gate| format!("{} {} {:?}", gate.metric, gate.bound, gate.rank))
        .collect();
    assert_eq!(
        descriptions,
        [
            "decode_ratio at least 0.95 Some(1024)",
            "decode_ratio at least 0.75 Some(1536)",
            "prefill_time_ratio at most 2.25 None",
            "decode_ratio_lower95 at least 0.67 None",
            "perplexity_increase at most 0.15 None",
        ]
    );
}

#[test]
fn gates_are_judged_on_measured_values() {
    let log = RefCell::default();
    let mut subject = ScriptedRunner::new("subject", &[100, 101, 102], &log);
    let mut baseline = ScriptedRunner::new("baseline", &[200, 203, 201], &log);
    let record = record(measure(&protocol(8), &mut subject, Some(&mut baseline)));
    let gates = gates_of(
        r#"[{"metric": "decode_ratio", "at_least": 1.9},
            {"metric": "decode_ratio", "at_least": 2.1},
            {"metric": "prefill_time_ratio", "at_most": 0.55},
            {"metric": "end_to_end_ratio_lower95", "at_least": 1.99, "rank": 4},
            {"metric": "end_to_end_ratio_lower95", "at_most": 3, "rank": 5},
            {"metric": "prefill_speed", "at_least": 499},
            {"metric": "perplexity_increase", "at_most": 9}]"#,
    )
    .unwrap();
    use Outcome::{Failed, OtherRank, Passed};
    let judged = gates
        .iter()
        .map(|gate| gate.judge(&record, Some(5)).outcome);
    let judged: Vec<Outcome> = judged.collect();
    assert_eq!(
        judged[..],
        [Passed, Failed, Passed, OtherRank, Passed, Failed, Failed]
    );
    let one = serde_json::to_value(gates[3].judge(&record, Some(5))).unwrap();
    let keys: Vec<&str> = one
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, ["at_least", "found", "metric", "outcome", "rank"]);
}

#[test]
fn unmeasurable_gates_are_rejected_before_the_run() {
    let gates = gates_of(r#"[{"metric": "perplexity_increase", "at_most": 1}, {"metric": "decode_speed", "at_least": 1}]"#).unwrap();
    let check = |baseline, text| gates::check(&gates, None, baseline, text, 8);
    assert!(check(true, true).is_ok());
    assert!(
        check(true, false)
            .unwrap_err()
            .to_string()
            .contains("`text`")
    );
    assert!(
        check(false, false)
            .unwrap_err()
            .to_string()
            .contains("`against`")
    );
    let ranked = gates_of(r#"[{"metric": "decode_ratio", "at_least": 1, "rank": 8}]"#).unwrap();
    assert!(gates::check(&ranked, Some(8), true, false, 8).is_ok());
    for rank in [None, Some(9)] {
        let found = gates::check(&ranked, rank, true, false, 8).unwrap_err();
        assert!(found.to_string().contains("rank 8"), "{found}");
    }
    let lower = gates_of(r#"[{"metric": "decode_ratio_lower95", "at_least": 1}]"#).unwrap();
    assert!(gates::check(&lower, None, true, false, 1).is_err());
}

#[test]
fn invalid_gates_report_their_line() {
    for (line, text, words) in [
        (
            2,
            "[{\"metric\": \"decode_ratio\", \"at_least\": 1},\n {\"metric\": \"speed\", \"at_least\": 1}]",
            "no metric is called \"speed\"",
        ),
        (2, "[\n{\"metric\": \"decode_ratio\"}]", "either"),
        (
            1,
            "[{\"metric\": \"decode_ratio\", \"at_least\": 1, \"at_most\": 2}]",
            "either",
        ),
        (
            3,
            "[\n{\"metric\": \"decode_ratio\",\n\"bound\": 1}]",
            "unknown field `bound`",
        ),
        (
            1,
            "[{\"metric\": \"decode_ratio\", \"at_least\": \"1\"}]",
            "invalid type",
        ),
        (
            1,
            "[{\"metric\": \"decode_ratio\", \"at_least\": 1, \"rank\": 0}]",
            "rank",
        ),
        (
            1,
            "[{\"metric\": \"decode_ratio\", \"at_least\": 1e999}]",
            "out of range",
        ),
        (1, "{}", "invalid type"),
        (1, "[{", "EOF"),
    ] {
        match gates_of(text).unwrap_err() {
            BenchError::File(FileError::Syntax {
                line: found,
                message: what,
                ..
            }) => {
                assert!(
                    found == line && what.contains(words),
                    "{text}: line {found}: {what}"
                );
            }
            other => panic!("{text}: {other}"),
        }
    }
    assert!(matches!(gates_of("[]"), Err(BenchError::NoGates(_))));
    let many = format!(
        "[{}]",
        vec!["{\"metric\": \"decode_ratio\", \"at_least\": 1}"; 1001].join(",")
    );
    assert!(matches!(
        gates_of(&many),
        Err(BenchError::File(FileError::TooLarge { .. }))
    ));
    assert!(matches!(
        gates_of(&" ".repeat(2 << 20)),
        Err(BenchError::File(FileError::TooLarge { .. }))
    ));
    assert!(matches!(
        gates::read(std::path::Path::new("no/such")),
        Err(BenchError::File(FileError::Read { .. }))
    ));
}
