use super::*;
use crate::ExecError;
use crate::backend::Reference;

const KINDS: [&str; 9] = [
    "f32",
    "f16",
    "q8_0",
    "q8_0-rotated",
    "q4_0",
    "q4_0-rotated",
    "static:0.5",
    "static-hybrid:0.5",
    "oja:0.5",
];

pub(super) fn options(kind: &str) -> KvOptions {
    KvOptions::new(kind.parse::<KvKind>().unwrap())
}

fn short(kind: &str) -> KvOptions {
    let mut options = options(kind);
    (
        options.exempt_start,
        options.exempt_recent,
        options.importance_window,
    ) = (4, 8, 8);
    options.oja.period = 8;
    options
}

pub(super) struct Fixture {
    pub model: Arc<Model>,
    pub bases: Arc<KvBases>,
    pub tokens: Vec<u32>,
}

impl Fixture {
    pub fn new() -> Self {
        let mut cpu = Cpu::with_threads(2).unwrap();
        let model = load(&mut cpu);
        let tokens = tokens(500);
        let bases = calibrated(&model, &tokens[..200]);
        Fixture {
            model,
            bases,
            tokens,
        }
    }

    pub fn session(&self, options: &KvOptions, threads: usize) -> Session {
        let cpu = Cpu::with_threads(threads).unwrap();
        let bases = Some(Arc::clone(&self.bases));
        Session::with_kv(Arc::clone(&self.model), cpu, 512, options, bases).unwrap()
    }
}

fn read<B: Backend>(session: &mut Session<B>, tokens: &[u32], prompt: usize) -> Vec<Vec<f32>> {
    session.read_prompt(&tokens[..prompt]).unwrap();
    let mut found = vec![session.last_logits().unwrap().to_vec()];
    for token in &tokens[prompt..] {
        found.push(session.step(&[*token]).unwrap().to_vec());
    }
    found
}

#[test]
fn cpu_agrees_with_the_reference_on_every_kind() {
    let bench = Fixture::new();
    let mut oracle = Reference;
    let reference = load(&mut oracle);
    for (kind, keep, bound) in [
        ("f32", None, 1e-3),
        ("f16", Some(40), 2e-2),
        ("q8_0", None, 5e-2),
        ("q8_0-rotated", Some(40), 5e-2),
        ("q4_0", None, 0.3),
        ("q4_0-rotated", None, 0.3),
        ("static:0.5", Some(40), 2e-2),
        ("static-hybrid:0.5", None, 2e-2),
        ("oja:0.5", None, 5e-2),
        ("oja:0.5", Some(40), 5e-2),
    ] {
        let mut options = short(kind);
        (options.max_prompt_positions, options.max_pass_positions) = (keep, Some(48));
        let bases = Some(Arc::clone(&bench.bases));
        let expected = Session::with_kv(Arc::clone(&reference), Reference, 512, &options, bases);
        let mut expected = expected.unwrap();
        let mut found = bench.session(&options, 2);
        let tokens = &bench.tokens[..90];
        let all = read(&mut found, tokens, 72).into_iter();
        let expected_all = read(&mut expected, tokens, 72);
        for (index, (a, b)) in all.zip(&expected_all).enumerate() {
            let difference = difference(&a, b);
            assert!(
                difference < bound,
                "{kind}, keep {keep:?}, logits {index}: {difference:.2e}"
            );
        }
        assert_eq!(found.kv().layout(), expected.kv().layout());
        assert_eq!(found.kv_counters().updates, expected.kv_counters().updates);
    }
}

#[test]
fn rounding_errors_of_kinds_are_ordered() {
    let bench = Fixture::new();
    let exact = read(&mut bench.session(&options("f32"), 2), &bench.tokens, 400);
    let error = |kind: &str, change: fn(&mut KvOptions)| {
        let mut options = options(kind);
        change(&mut options);
        let found = read(&mut bench.session(&options, 2), &bench.tokens, 400);
        let differences = found.iter().zip(&exact).map(|(a, b)| difference(a, b));
        differences.fold(0.0, f64::max)
    };
    let half = error("f16", |_| ());
    assert!(half < 2e-2, "{half}");
    for kind in ["static:1", "static-hybrid:1", "oja:1"] {
        let whole = error(kind, |_| ());
        assert!(whole < 3e-2, "{kind}: {whole}");
    }
    let ordered = [
        error("q8_0", |_| ()),
        error("q4_0", |_| ()),
        error("static-hybrid:0.25", |_| ()),
    ];
    assert!(half < ordered[0] && ordered[0] < ordered[1] && ordered[1] < ordered[2]);
    let turned = error("q8_0-rotated", |_| ());
    assert!(turned < 3.0 * ordered[0], "{turned} {ordered:?}");
}

#[test]
fn exempt_positions_equal_those_of_float16() {
    let bench = Fixture::new();
    let mut plain = bench.session(&options("f16"), 2);
    let mut hybrid = bench.session(&options("static-hybrid:0.5"), 2);
    // While all positions are exempt, results are bit-identical.
    let (a, b) = (
        read(&mut plain, &bench.tokens[..64], 60),
        read(&mut hybrid, &bench.tokens[..64], 60),
    );
    assert_eq!(a, b);
    assert_eq!(hybrid.kv().low_rank_rows(), 0);
    let [a, b] = [&mut plain, &mut hybrid].map(|session| {
        session.step(&bench.tokens[64..300]).unwrap();
        session.end_prompt().unwrap();
        let kv = session.kv();
        // The first layer's keys and values do not depend on attention.
        let full = kv.layout().full_rows(0);
        let mut cpu = crate::Cpu::with_threads(1).unwrap();
        let rows = kv.full_rows(&mut cpu, 0, 0..full).unwrap();
        (full, rows)
    });
    assert_eq!((a.0, b.0), (300, 64));
    let row = 32;
    for side in 0..2 {
        for head in 0..4 {
            for exempt in 0..64 {
                let position = if exempt < 32 { exempt } else { exempt + 236 };
                let expected = &a.1[side][(head * 300 + position) * row..][..row];
                let found = &b.1[side][(head * 64 + exempt) * row..][..row];
                assert_eq!(found, expected, "{position}");
            }
        }
    }
}

#[test]
fn logits_do_not_depend_on_threads_or_earlier_sequences() {
    let bench = Fixture::new();
    for kind in KINDS {
        let mut options = short(kind);
        (options.max_pass_positions, options.max_prompt_positions) = (Some(70), Some(100));
        let mut first = bench.session(&options, 1);
        let mut second = bench.session(&options, 3);
        let expected = read(&mut first, &bench.tokens[..230], 200);
        assert_eq!(
            expected,
            read(&mut second, &bench.tokens[..230], 200),
            "{kind}"
        );
        assert_eq!(first.kv_usage().used, second.kv_usage().used);
        read(&mut second, &bench.tokens[100..400], 250);
        second.reset();
        assert_eq!(second.kv_counters(), &KvCounters::default());
        assert_eq!(second.kv_usage().used, 0);
        assert_eq!(
            expected,
            read(&mut second, &bench.tokens[..230], 200),
            "{kind}"
        );
        second.truncate(0).unwrap();
        assert_eq!(
            expected,
            read(&mut second, &bench.tokens[..230], 200),
            "{kind}"
        );
    }
}

#[test]
fn truncation_equals_never_having_read() {
    let bench = Fixture::new();
    for kind in KINDS {
        let mut options = short(kind);
        options.max_pass_positions = Some(50);
        let mut cut = bench.session(&options, 2);
        let mut whole = bench.session(&options, 2);
        cut.read_prompt(&bench.tokens[..150]).unwrap();
        whole.read_prompt(&bench.tokens[..150]).unwrap();
        cut.step(&bench.tokens[300..303]).unwrap();
        cut.truncate(150).unwrap();
        let next = bench.tokens[150];
        let (a, b) = (
            cut.step(&[next]).unwrap().to_vec(),
            whole.step(&[next]).unwrap(),
        );
        assert!(difference(&a, b) < 0.05, "{kind}");
        for length in [151, 140, 60, 3] {
            cut.truncate(length).unwrap();
            let layout = cut.kv().layout();
            for layer in 0..8 {
                assert_eq!(
                    layout.full_rows(layer) + layout.low_rank_rows(layer),
                    length
                );
            }
            assert!(cut.step(&[next]).unwrap().iter().all(|x| x.is_finite()));
            cut.truncate(length).unwrap();
        }
        let error = cut.truncate(4).unwrap_err();
        assert!(matches!(error, ExecError::Truncate { .. }));
    }
}

#[test]
fn prompt_is_cut_to_the_positions_to_keep() {
    let bench = Fixture::new();
    for kind in KINDS {
        let mut options = short(kind);
        options.max_prompt_positions = Some(60);
        let mut session = bench.session(&options, 2);
        read(&mut session, &bench.tokens[..300], 300);
        let usage = session.kv_usage();
        assert_eq!((usage.positions, usage.evicted), (300, 8 * 240), "{kind}");
        let layout = session.kv().layout();
        assert!((0..8).all(|layer| layout.positions(layer) == 60));
        let exempt = if options.kind.has_exemptions() { 12 } else { 0 };
        let low = if options.kind.rank().is_some() {
            60 - exempt
        } else {
            0
        };
        assert_eq!(usage.compressed, 8 * low);
        let expected = match low {
            0 => 60 * usage.bytes_per_position,
            _ => exempt * usage.full_bytes_per_position + low * usage.bytes_per_position,
        };
        assert_eq!(usage.used, expected, "{kind}");
        // Capacity for 64 positions each in full and in low rank, or for 64.
        assert!(usage.bytes <= 64 * (usage.full_bytes_per_position + usage.bytes_per_position));
        let logits = session.step(&bench.tokens[300..310]).unwrap();
        assert!(logits.iter().all(|x| x.is_finite()));
        session.truncate(300).unwrap();
        let error = session.truncate(299).unwrap_err();
        assert!(
            error.to_string().contains("position 300 were evicted"),
            "{error}"
        );
        assert_eq!(session.position(), 300);
        session.read_prompt(&bench.tokens[300..350]).unwrap();
        assert!((0..8).all(|layer| session.kv().layout().positions(layer) == 60));
        session.reset();
        assert_eq!(session.kv_usage().evicted, 0);
    }
    let mut options = short("f16");
    options.max_prompt_positions = Some(60);
    let mut session = bench.session(&options, 1);
    session.read_prompt(&bench.tokens[..60]).unwrap();
    session.step(&bench.tokens[60..80]).unwrap();
    assert_eq!(session.kv().evicted_rows(), 0);
    let error = session.end_prompt().unwrap_err();
    assert!(matches!(error, ExecError::NoImportance), "{error}");
}

#[test]
fn eviction_keeps_the_important_positions() {
    let bench = Fixture::new();
    let prompt = [&bench.tokens[..120], &bench.tokens[..60]].concat();
    let logits = |keep: Option<usize>, first: usize| {
        let mut options = options("f16");
        options.max_prompt_positions = keep;
        let mut session = bench.session(&options, 2);
        session.read_prompt(&prompt[first..]).unwrap();
        session.step(&bench.tokens[60..61]).unwrap().to_vec()
    };
    let whole = logits(None, 0);
    let kept = difference(&logits(Some(120), 0), &whole);
    let last = difference(&logits(None, 60), &whole);
    assert!(kept < last, "{kept} {last}");
}

#[test]
fn layers_with_windows_keep_their_positions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("../tests/fixtures/architectures/gemma2/model.gguf");
    let model = Arc::new(Model::open(path).unwrap());
    let mut options = short("f16");
    (options.importance_window, options.max_prompt_positions) = (2, Some(6));
    let windows: Vec<bool> = model
        .blocks
        .iter()
        .map(|block| {
            block
                .attention()
                .is_some_and(|step| step.attention.window.is_some())
        })
        .collect();
    assert!(windows.contains(&true) && windows.contains(&false));
    let cpu = Cpu::with_threads(1).unwrap();
    let mut session = Session::with_kv(Arc::clone(&model), cpu, 64, &options, None).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| 3 + i % 11).collect();
    session.read_prompt(&tokens).unwrap();
    for (layer, window) in windows.iter().enumerate() {
        let expected = if *window { 20 } else { 6 };
        assert_eq!(session.kv().layout().positions(layer), expected);
    }
    let windowed = windows.iter().filter(|window| **window).count();
    assert_eq!(session.kv_counters().sliding_window_layers, windowed);
    assert!(session.step(&[5]).is_ok());
}

#[test]
fn bases_adapt_to_the_text_and_report_their_drift() {
    let bench = Fixture::new();
    let mut options = options("oja:0.5");
    options.max_pass_positions = Some(32);
    let mut session = bench.session(&options, 2);
    session.step(&bench.tokens[..480]).unwrap();
    session.end_prompt().unwrap();
    let counters = session.kv_counters();
    assert_eq!(session.kv().low_rank_rows(), 8 * 416);
    assert_eq!((counters.updates, counters.drift.len()), (13, 13));
    assert!(counters.update_time > std::time::Duration::ZERO);
    for pair in counters.drift.windows(2) {
        assert!(pair[0][0] > 0.0 && pair[1][1] > 0.0);
    }
    assert!(counters.drift[12][0] > counters.drift[0][0]);
    // ‖P_t − P_0‖² = 2 r (1 − overlap) for each head.
    assert_eq!(counters.overlap.len(), 13);
    let ranks = session.kv().layout().plan().ranks(0).unwrap();
    for (distance, overlap) in counters.drift.iter().zip(&counters.overlap) {
        for side in 0..2 {
            let largest = (2.0 * ranks[side] as f64 * (1.0 - overlap[side])).sqrt();
            assert!((0.0..1.0).contains(&overlap[side]), "{overlap:?}");
            assert!(distance[side] < largest + 1e-5 && distance[side] > 0.5 * largest);
        }
    }
    let [keys, values] = counters.residual_ratio().unwrap();
    assert!(
        (0.0..0.5).contains(&keys) && (0.0..0.9).contains(&values),
        "{keys} {values}"
    );
    options.kind = "oja:1".parse().unwrap();
    let mut session = bench.session(&options, 2);
    session.step(&bench.tokens[..200]).unwrap();
    let whole = session.kv_counters().residual_ratio().unwrap();
    assert!(whole.iter().all(|ratio| *ratio < 1e-5), "{whole:?}");
}

#[test]
fn passes_respect_the_step_option() {
    let bench = Fixture::new();
    let mut options = options("oja:0.5");
    let session = bench.session(&options, 1);
    assert_eq!((session.batch(), session.next_pass(530)), (512, 265));
    assert_eq!((session.next_pass(1100), session.next_pass(5)), (512, 5));
    options.max_pass_positions = Some(32);
    let mut session = bench.session(&options, 1);
    assert_eq!((session.batch(), session.next_pass(40)), (32, 32));
    assert!(session.forward(&bench.tokens[..33]).is_err());
    session.step(&bench.tokens[..33]).unwrap();
    let plain = bench.session(&KvOptions::new(KvType::F16), 1);
    assert_eq!((plain.batch(), plain.next_pass(530)), (512, 512));
}
