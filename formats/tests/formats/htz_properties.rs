//! Properties of artifacts: round trips and absence of panics.

use std::sync::OnceLock;

use crate::htz_common::{
    Choice, Model, hyper, json, measured, model, put_manifest, reseal, reseal_header,
    with_kv_bases, with_source,
};
use htc_formats::DType;
use htc_formats::htz::{Budget, Htz, Section};
use htc_formats::model::ProjectionKind;
use htc_formats::source::ModelFile;
use proptest::prelude::*;
use serde_json::Value;

fn file() -> Vec<u8> {
    static FILE: OnceLock<Vec<u8>> = OnceLock::new();
    FILE.get_or_init(|| {
        let extra = Section::new("notes", false, &b"notes ".repeat(100)).expect("a section");
        with_source(with_kv_bases(measured()), DType::Q8_0).bytes_with(&[extra])
    })
    .clone()
}

fn use_it(file: &[u8]) -> bool {
    let Ok(htz) = Htz::parse(&file) else {
        return false;
    };
    for entry in &htz.manifest().tensors {
        assert_eq!(htz.tensor_bytes(entry).len() as u64, entry.length);
    }
    for entry in &htz.manifest().sections {
        let _ = htz.section(entry);
    }
    let of_source = htz.manifest().source_bytes();
    assert!(htz.bytes_without_source() + of_source <= file.len() as u64);
    for found in htz
        .manifest()
        .quality
        .iter()
        .flat_map(|q| [q.kl, q.perplexity_ratio])
    {
        assert!(found.value.is_finite() && found.value >= 0.0);
        let (low, high) = found.interval.unwrap_or((0.0, f64::MAX));
        assert!(low <= found.value && found.value <= high);
    }
    let vocabulary = htz.vocabulary();
    let verified = htz.verify_all(|_| {});
    verified.is_ok() && vocabulary.is_ok()
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(items) => items.values().map(count).sum(),
        _ => 0,
    }
}

fn place<'a>(value: &'a mut Value, index: &mut usize) -> Option<&'a mut Value> {
    if *index == 0 {
        return Some(value);
    }
    *index -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| place(item, index)),
        Value::Object(items) => items.values_mut().find_map(|item| place(item, index)),
        _ => None,
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0_u64..300).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[ -~]{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            "q8_0",
            "f32",
            "f16",
            "bf16",
            "q4_k",
            "raw",
            "zstd",
            "full",
            "low_rank",
            "residual",
            "dense",
            "output",
            "output.weight",
            "blk.0.attn_q",
            "blk.0.attn_q.weight",
            "blk.0.attn_q.residual_a",
            "output.a",
            "blk.0.key_basis",
            "blk.0.value_energies",
            "kv_bases",
            "tokenizer",
            "source.blk.0.attn_k.weight",
        ])
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop::collection::vec(inner, 0..4).prop_map(Value::from)
    })
}

fn any_choice(projection: ProjectionKind) -> impl Strategy<Value = Choice> {
    let any = DType::ALL.to_vec();
    let dense: Vec<DType> = any.into_iter().filter(|d| d.block_len() <= 32).collect();
    let float = vec![DType::F32, DType::F16, DType::BF16];
    let low_rank = prop_oneof![
        (prop::sample::select(float.clone()), 1_usize..16),
        Just((DType::Q8_0, 32)),
    ]
    .prop_map(move |(dtype, rank)| match projection {
        ProjectionKind::K | ProjectionKind::V if rank > 16 => Choice::LowRank(DType::F16, 16),
        _ => Choice::LowRank(dtype, rank),
    });
    let shared = prop::sample::select(float).prop_map(move |dtype| match projection.group() {
        Some(_) => Choice::Shared(dtype),
        None => Choice::Dense(dtype),
    });
    let residual = (prop::sample::select(dense.clone()), 1_usize..=16)
        .prop_map(|(base, rank)| Choice::Residual(base, rank));
    prop_oneof![
        prop::sample::select(dense).prop_map(Choice::Dense),
        low_rank,
        residual,
        shared
    ]
}

fn any_layer() -> impl Strategy<Value = Vec<Choice>> {
    ProjectionKind::ALL
        .map(any_choice)
        .into_iter()
        .collect::<Vec<_>>()
}

fn any_model() -> impl Strategy<Value = Model> {
    (
        prop::collection::vec(any_layer(), 1..4),
        (any::<bool>(), any::<bool>()),
        prop::option::of(prop::sample::select(vec![
            DType::F32,
            DType::Q8_0,
            DType::Q5_1,
        ])),
        prop::option::of(Just(DType::F16)),
        (
            prop::sample::select(vec![DType::F32, DType::Q8_0]),
            1_usize..=32,
        ),
        prop_oneof![
            Just(Budget::Full),
            (1_usize..100).prop_map(Budget::Rank),
            (1e-9_f64..2.0).prop_map(Budget::Ratio)
        ],
        ("[\\PC\n\"\\\\]{0,20}", prop::option::of("\\PC{0,30}")),
    )
        .prop_map(
            |(layers, (rope, has_kv_bases), source, output, basis, budget, (text, note))| {
                let choose = |layer: usize, projection| {
                    let mut all = ProjectionKind::ALL.iter();
                    layers[layer][all.position(|kind| *kind == projection).unwrap()]
                };
                let mut model = model(hyper(layers.len()), rope, output, basis, choose);
                model.manifest.plan.budget = budget;
                model.manifest.provenance.source_format = text.clone();
                model.manifest.hyper.name = note.clone();
                model.manifest.plan.projections[0].note = note;
                model.vocabulary.tokens[3] = text;
                let model = if has_kv_bases {
                    with_kv_bases(model)
                } else {
                    model
                };
                match source {
                    Some(dtype) => with_source(model, dtype),
                    None => model,
                }
            },
        )
}

fn any_error() -> impl Strategy<Value = Option<f64>> {
    let bits = any::<u64>().prop_map(f64::from_bits);
    let finite = bits.prop_map(|x| if x.is_finite() { x.abs() } else { 0.25 });
    prop::option::of(prop_oneof![finite, 0.0_f64..1.0])
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        prop_assert!(!use_it(&bytes));
    }

    #[test]
    fn arbitrary_bytes_after_a_header_never_panic(
        header in prop::collection::vec(any::<u8>(), 64),
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        take in 0_usize..64,
    ) {
        let mut file = file();
        file.truncate(128);
        file[8 + take..72].copy_from_slice(&header[take..]);
        file.extend_from_slice(&bytes);
        reseal_header(&mut file);
        prop_assert!(!use_it(&file));
    }

    #[test]
    fn modified_file_is_never_accepted(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..8),
    ) {
        let whole = file();
        let mut file = whole.clone();
        for (at, change) in &changes {
            let at = at.index(file.len());
            file[at] ^= change;
        }
        prop_assert_eq!(use_it(&file), file == whole);
    }

    #[test]
    fn modified_file_with_valid_digests_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut file = file();
        let end = crate::htz_common::data_offset(&file);
        for (at, change) in &changes {
            file[128 + at.index(end - 128)] = *change;
        }
        reseal(&mut file);
        use_it(&file);
    }

    #[test]
    fn modified_manifest_with_valid_digests_never_panics(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 1..3),
    ) {
        let mut file = file();
        let mut value = json(&file);
        for (at, new) in changes {
            let mut index = at.index(count(&value));
            if let Some(old) = place(&mut value, &mut index) {
                *old = new;
            }
        }
        if put_manifest(&mut file, value.to_string().as_bytes()) {
            use_it(&file);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_model_round_trips(
        mut model in any_model(),
        errors in prop::collection::vec(any_error(), 21),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.htz");
        for (projection, error) in model.manifest.plan.projections.iter_mut().zip(&errors) {
            projection.error = *error;
        }
        let sections = vec![Section::tokenizer(&model.vocabulary).unwrap()];
        let mut writer =
            htc_formats::htz::HtzWriter::create(&path, model.manifest.clone(), sections, false)
                .unwrap();
        for (role, bytes) in &model.data {
            writer.write_tensor(*role, bytes).unwrap();
        }
        for (role, bytes) in &model.source {
            writer.write_source(*role, bytes).unwrap();
        }
        writer.finish(|_| {}).unwrap();
        let htz = Htz::open(&path).unwrap();
        htz.verify_all(|_| {}).unwrap();
        prop_assert_eq!(&htz.manifest().plan, &model.manifest.plan);
        prop_assert_eq!(&htz.manifest().hyper, &model.manifest.hyper);
        prop_assert_eq!(&htz.manifest().provenance, &model.manifest.provenance);
        prop_assert_eq!(&htz.vocabulary().unwrap(), &model.vocabulary);
        prop_assert_eq!(htz.manifest().tensors.len(), model.data.len());
        for (entry, (role, bytes)) in htz.manifest().tensors.iter().zip(&model.data) {
            prop_assert_eq!(entry.role, *role);
            prop_assert_eq!(htz.tensor_bytes(entry), &bytes[..]);
        }
        let source = ModelFile::from_htz(&htz).unwrap().embedded_source().unwrap();
        prop_assert_eq!(source.is_some(), model.manifest.source.is_some());
        if let Some(source) = source {
            for (role, bytes) in &model.source {
                prop_assert_eq!(source.bytes(source.tensor(*role).unwrap()), &bytes[..]);
            }
        }
    }
}
