use std::sync::Arc;

use htc_formats::htz::Digest;
use htc_formats::learnt;
use htc_formats::source::ModelFile;
use htc_loader::ExecError;
use htc_loader::adapt::{AdaptOptions, Adaptation, AdaptationStats};
use htc_loader::backend::Reference;
use htc_loader::dial::ActiveSetting;
use htc_loader::generate::Generator;
use htc_loader::sampling::Sampler;
use htc_loader::speculate::{DraftLength, Speculator};
use htc_loader::{Backend, Pool};

use super::Named;
use super::speculation::{generate_tokens, in_shared_bases, limits, session};

const PROMPT: [u32; 4] = [1, 40, 77, 130];
const WRITTEN: usize = 24;
const DRAFT: Digest = Digest([1; 32]);
const MODEL: Digest = Digest([2; 32]);

fn both_adaptations(draft: &ModelFile, model: &ModelFile) -> [(&'static str, Adaptation); 2] {
    let pool = Arc::new(Pool::new(1).unwrap());
    let (mut oja, mut gradient) = (AdaptOptions::oja(), AdaptOptions::gradient());
    (oja.rejections_per_update, gradient.rejections_per_update) = (1, 1);
    (oja.rate, gradient.rate) = (0.5, 0.5);
    [
        (
            "oja",
            Adaptation::oja(draft, ActiveSetting::FULL, model, oja, &pool).unwrap(),
        ),
        ("gradient", Adaptation::gradient(draft, gradient).unwrap()),
    ]
}

struct Outcome {
    tokens: Vec<u32>,
    learnt: AdaptationStats,
    state: learnt::TrainedDraft,
    before: Vec<f32>,
    after: Vec<f32>,
}

fn learn<B: Backend>(
    [model, draft]: [&ModelFile; 2],
    mut backend: impl FnMut() -> B,
    adaptation: Adaptation,
) -> Outcome {
    let mut greedy = Sampler::greedy();
    let mut own = session(model, backend());
    let tokenizer = own.model().tokenizer().unwrap();
    let drafting = session(draft, backend());
    let length = DraftLength::Fixed(3);
    let speculator = Speculator::with_draft_model(drafting, own.model(), length, &greedy).unwrap();
    let mut speculator = speculator.with_adaptation(adaptation);
    let of_draft = |speculator: &mut Speculator<B>| {
        speculator.reset();
        let drafting = speculator.draft_session_mut().unwrap();
        let logits = drafting.step(&PROMPT).unwrap().to_vec();
        speculator.reset();
        logits
    };
    let before = of_draft(&mut speculator);
    let mut text = |speculator: &mut Speculator<B>, tokens| {
        own.reset();
        speculator.reset();
        let limits = limits(tokens);
        let (own, draft) = (&mut own, speculator);
        let new =
            Generator::with_draft(own, draft, &tokenizer, &mut greedy, &PROMPT, limits).unwrap();
        generate_tokens(new).0
    };
    let tokens = text(&mut speculator, WRITTEN);
    let adaptation = speculator.adaptation().unwrap();
    let (learnt, state) = (adaptation.stats(), adaptation.state(DRAFT, MODEL));
    text(&mut speculator, 4);
    Outcome {
        tokens,
        learnt,
        state,
        before,
        after: of_draft(&mut speculator),
    }
}

fn relative_distance(found: &[f32], expected: &[f32]) -> f64 {
    let squares = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>();
    let pairs = found.iter().zip(expected);
    let difference = squares(&mut pairs.map(|(&a, &b)| f64::from(a) - f64::from(b)));
    (difference / squares(&mut expected.iter().map(|&x| x.into())).max(1e-30)).sqrt()
}

pub fn drafts_learn_the_same_as_on_the_oracle<B: Backend>(backends: fn() -> Vec<Named<B>>) {
    let [model, draft] = in_shared_bases("4");
    let models = [&model, &draft];
    let expected =
        both_adaptations(&draft, &model).map(|(_, how)| learn(models, || Reference, how));
    let names: Vec<String> = backends().into_iter().map(|(name, _)| name).collect();
    for (index, name) in names.iter().enumerate() {
        let mut plain = session(&model, backends().swap_remove(index).1);
        let tokenizer = plain.model().tokenizer().unwrap();
        let mut greedy = Sampler::greedy();
        let text = Generator::new(
            &mut plain,
            &tokenizer,
            &mut greedy,
            &PROMPT,
            limits(WRITTEN),
        );
        let text = generate_tokens(text.unwrap()).0;
        for ((kind, how), expected) in both_adaptations(&draft, &model).into_iter().zip(&expected) {
            let what = format!("{name}, {kind}");
            let found = learn(models, || backends().swap_remove(index).1, how);
            assert_eq!(found.tokens, text, "{what}");
            let (learnt, wanted) = (found.learnt, expected.learnt);
            let least = if kind == "oja" { 4 } else { 1 };
            assert!(wanted.updates >= least, "{what}: {wanted:?}");
            assert_eq!(learnt.updates, wanted.updates, "{what}");
            assert_eq!(learnt.rejections, wanted.rejections, "{what}");
            let [moved, off_before, off_after] = [
                relative_distance(&expected.after, &expected.before),
                relative_distance(&found.before, &expected.before),
                relative_distance(&found.after, &expected.after),
            ];
            assert!(off_before < 0.01, "{what}: {off_before}");
            assert!(off_after < 0.02, "{what}: {off_after}");
            assert!(moved > 5.0 * off_after, "{what}: {moved}, {off_after}");
            for (found, expected) in found.state.matrices.iter().zip(&expected.state.matrices) {
                let off = relative_distance(&found.numbers, &expected.numbers);
                assert!(off < 0.02, "{what}, layer {}: {off}", found.layer);
            }
        }
    }
}

#[test]
fn learnt_state_is_restored_only_for_its_models() {
    let [model, draft] = in_shared_bases("4");
    let learnt =
        both_adaptations(&draft, &model).map(|(_, how)| learn([&model, &draft], || Reference, how));
    for (index, found) in learnt.iter().enumerate() {
        let new = || {
            let [(_, oja), (_, gradient)] = both_adaptations(&draft, &model);
            if index == 0 { oja } else { gradient }
        };
        let mut again = new();
        again.restore(&found.state, DRAFT, MODEL).unwrap();
        let (now, then) = (again.stats(), found.learnt);
        assert!(then.distance > 0.0 && (now.distance / then.distance - 1.0).abs() < 1e-5);
        let state = again.state(DRAFT, MODEL);
        for (now, then) in state.matrices.iter().zip(&found.state.matrices) {
            assert!(relative_distance(&now.numbers, &then.numbers) < 1e-5);
        }
        let mut second = new();
        second.restore(&found.state, DRAFT, MODEL).unwrap();
        let second = learn([&model, &draft], || Reference, second);
        assert_eq!(second.tokens, found.tokens);
        if index == 0 {
            assert!(second.state.samples > found.state.samples);
        }

        let other = Digest([3; 32]);
        let mut shorter = found.state.clone();
        shorter.matrices.pop();
        let mut turned = found.state.clone();
        for part in &mut turned.matrices {
            (part.rows, part.cols) = (part.cols, part.rows);
        }
        let of_the_other_kind = &learnt[1 - index].state;
        for (state, draft, model, says) in [
            (&found.state, other, MODEL, "draft"),
            (&found.state, DRAFT, other, "model"),
            (of_the_other_kind, DRAFT, MODEL, "kind"),
            (
                &shorter,
                DRAFT,
                MODEL,
                if index == 0 {
                    "number of layers"
                } else {
                    "shape"
                },
            ),
            (&turned, DRAFT, MODEL, "shape"),
        ] {
            let mut untouched = new();
            let refused = untouched.restore(state, draft, model).unwrap_err();
            let ExecError::StateMismatch {
                what,
                expected,
                found,
            } = &refused
            else {
                panic!("{refused}");
            };
            assert_eq!(*what, says);
            assert_ne!(expected, found);
            assert_eq!(untouched.state(DRAFT, MODEL), new().state(DRAFT, MODEL));
        }
    }
}
