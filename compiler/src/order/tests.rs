use htc_formats::DType;
use htc_formats::block;
use htc_formats::source::ModelFile;

use super::*;
use crate::math::random::Rng;

fn fixtures() -> Vec<ModelFile> {
    let root = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/architectures"
    );
    let folders = std::fs::read_dir(root).unwrap();
    let paths = folders.map(|entry| entry.unwrap().path().join("model.gguf"));
    let models: Vec<ModelFile> = paths.map(|path| ModelFile::open(path).unwrap()).collect();
    assert_eq!(models.len(), 9);
    models
}

fn shuffled(n: usize, rng: &mut Rng) -> Vec<u32> {
    let mut places: Vec<u32> = (0..n as u32).collect();
    for at in (1..n).rev() {
        places.swap(at, rng.below(at + 1));
    }
    places
}

fn drawn(model: &ModelFile, rng: &mut Rng) -> ChannelPermutation {
    let hyper = &model.hyper;
    let mut numbers = |n: usize| -> Vec<f64> { (0..n).map(|_| rng.unit()).collect() };
    let layers = (0..hyper.layers)
        .map(|_| {
            let (hidden, heads) = (numbers(hyper.ffn), numbers(hyper.heads * hyper.head_size));
            LayerPermutation::from_contributions(hyper, &[hidden], &heads)
        })
        .collect();
    ChannelPermutation {
        stream: shuffled(hyper.width, rng),
        layers,
    }
}

#[test]
fn value_channels_stay_in_their_heads_and_match_the_inputs_of_o() {
    let mut rng = Rng(5);
    for model in fixtures() {
        let order = drawn(&model, &mut rng);
        let (size, group) = (
            model.hyper.head_size,
            model.hyper.heads / model.hyper.kv_heads,
        );
        for of in &order.layers {
            for (head, places) in of.heads.chunks_exact(size).enumerate() {
                let kv_head = head / group;
                let values = &of.values[kv_head * size..][..size];
                for (read, value) in places.iter().zip(values) {
                    assert_eq!(*read as usize / size, head);
                    assert_eq!(*value as usize / size, kv_head);
                    assert_eq!(*read as usize % size, *value as usize % size);
                }
            }
            for places in [&of.hidden[0], &of.values, &of.heads] {
                let mut sorted = places.clone();
                sorted.sort_unstable();
                assert!(sorted.iter().enumerate().all(|(at, &of)| at == of as usize));
            }
        }
    }
}

#[test]
fn largest_contributions_come_first_and_ties_keep_their_order() {
    let hyper = &fixtures()[0].hyper;
    let mut hidden = vec![1.0; hyper.ffn];
    (hidden[3], hidden[7]) = (9.0, 0.0);
    let found = LayerPermutation::from_contributions(
        hyper,
        &[hidden],
        &vec![2.0; hyper.heads * hyper.head_size],
    );
    assert_eq!(found.hidden[0][..4], [3, 0, 1, 2]);
    assert_eq!(found.hidden[0].last(), Some(&7));
    assert!(found.heads.is_sorted() && found.values.is_sorted());
}

#[test]
fn tensors_are_permuted_as_values_and_bytes() {
    let mut rng = Rng(7);
    for model in fixtures() {
        let order = drawn(&model, &mut rng);
        let ordered = PermutedSource::new(&model, Some(&order));
        for tensor in &model.tensors {
            let (rows, cols) = (tensor.rows, tensor.cols);
            let mut source = vec![0.0; rows * cols];
            block::decode(tensor.dtype, model.bytes(tensor), &mut source).unwrap();
            let mut stored = vec![0.0; rows * cols];
            let (a, b) = stored.split_at_mut(rows / 2 * cols);
            ordered.decode(tensor, 0..rows / 2, a).unwrap();
            ordered.decode(tensor, rows / 2..rows, b).unwrap();
            for (at, value) in stored.iter().enumerate() {
                let (row, col) = ordered.source_position(tensor, at / cols, at % cols);
                assert_eq!(*value, source[row * cols + col], "{}", tensor.name);
            }
            let mut decoded = vec![0.0; rows * cols];
            let bytes = ordered.bytes(tensor).unwrap();
            block::decode(tensor.dtype, &bytes, &mut decoded).unwrap();
            assert_eq!(decoded, stored, "{}", tensor.name);
            let axes = order.axes(tensor.role);
            assert_eq!(axes.rows.map_or(rows, <[u32]>::len), rows);
            assert_eq!(axes.cols.map_or(cols, <[u32]>::len), cols);
        }
    }
}

#[test]
fn permuting_columns_within_blocks_is_rejected() {
    let mut model = fixtures().swap_remove(0);
    let order = drawn(&model, &mut Rng(2));
    let at = model
        .tensors
        .iter()
        .position(|t| t.role == Role::TokenEmbedding);
    model.tensors[at.unwrap()].dtype = DType::Q8_0;
    let tensor = model.tensors[at.unwrap()].clone();
    let dtype = DType::Q8_0;
    let found = PermutedSource::new(&model, Some(&order)).bytes(&tensor);
    assert!(matches!(
        found,
        Err(MakeError::Permutation { tensor: name, dtype: of }) if of == dtype && name == tensor.name
    ));
    let found = PermutedSource::new(&model, None).bytes(&tensor);
    assert_eq!(found.unwrap(), model.bytes(&tensor));
}

#[test]
fn permuted_moments_match_permuted_vectors() {
    let (n, mut rng) = (9, Rng(3));
    let vectors: Vec<Vec<f64>> = (0..20)
        .map(|_| (0..n).map(|_| rng.normal()).collect())
        .collect();
    let order = shuffled(n, &mut rng);
    let of = |vectors: &[Vec<f64>]| {
        let mut second = Vec::new();
        for row in 0..n {
            for col in 0..=row {
                second.push(vectors.iter().map(|v| v[row] * v[col]).sum::<f64>() as f32);
            }
        }
        StoredMoment {
            count: 20,
            mean: (0..n).map(|i| vectors.iter().map(|v| v[i]).sum()).collect(),
            second,
        }
    };
    let moved: Vec<Vec<f64>> = vectors.iter().map(|v| permuted(v, &order)).collect();
    let (found, expected) = (permuted_moment(&of(&vectors), &order), of(&moved));
    assert_eq!(
        (&found.mean, &found.second),
        (&expected.mean, &expected.second)
    );
    let lower = permuted_lower(&of(&vectors).lower(), &order);
    assert_eq!(lower, expected.lower());
}

#[test]
fn different_permutations_have_different_digests() {
    let model = fixtures().swap_remove(0);
    let order = drawn(&model, &mut Rng(4));
    assert_eq!(order.digest(), order.clone().digest());
    let mut other = order.clone();
    other.layers[1].hidden[0].swap(0, 1);
    assert_ne!(order.digest(), other.digest());
}
