//! Plain float64 forward pass of a llama model.

use crate::TinyModel;
use crate::float64::Matrix;
use crate::model::Tensor;

const ROPE_BASE: f64 = 10_000.0;

const EPSILON: f64 = 1e-5;

/// Returns the logits `[vocabulary]` after each token.
pub fn logits(tiny: &TinyModel, tokens: &[u32]) -> Vec<Vec<f64>> {
    let name = if tiny.output {
        "output.weight"
    } else {
        "token_embd.weight"
    };
    apply(&tensor(&tiny.tensors(), name), &head_inputs(tiny, tokens))
}

/// Returns the input of the head `[width]` for each token.
pub fn head_inputs(tiny: &TinyModel, tokens: &[u32]) -> Vec<Vec<f64>> {
    let weights = tiny.tensors();
    let tensor = |name: &str| tensor(&weights, name);
    let embedding = tensor("token_embd.weight");
    let mut stream: Vec<Vec<f64>> = tokens
        .iter()
        .map(|&token| embedding.values[token as usize * tiny.width..][..tiny.width].to_vec())
        .collect();
    for layer in 0..tiny.layers {
        let projection = |name: &str| tensor(&format!("blk.{layer}.{name}.weight"));
        let normed = norm(&stream, &projection("attn_norm"));
        let mut q = apply(&projection("attn_q"), &normed);
        let mut k = apply(&projection("attn_k"), &normed);
        let v = apply(&projection("attn_v"), &normed);
        rotate(&mut q, tiny.head_size);
        rotate(&mut k, tiny.head_size);
        let attended = attention(tiny, &q, &k, &v);
        add(&mut stream, &apply(&projection("attn_output"), &attended));

        let normed = norm(&stream, &projection("ffn_norm"));
        let mut hidden = apply(&projection("ffn_gate"), &normed);
        let up = apply(&projection("ffn_up"), &normed);
        for (hidden, up) in hidden.iter_mut().flatten().zip(up.iter().flatten()) {
            *hidden *= up / (1.0 + (-*hidden).exp());
        }
        add(&mut stream, &apply(&projection("ffn_down"), &hidden));
    }
    norm(&stream, &tensor("output_norm.weight"))
}

fn tensor(tensors: &[Tensor], name: &str) -> Matrix {
    let found = tensors.iter().find(|tensor| tensor.name == name).unwrap();
    Matrix::new(found.rows, found.cols, &found.values)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn apply(weight: &Matrix, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let product = |x: &Vec<f64>| {
        weight
            .values
            .chunks_exact(weight.cols)
            .map(|w| dot(w, x))
            .collect()
    };
    rows.iter().map(product).collect()
}

fn add(stream: &mut [Vec<f64>], change: &[Vec<f64>]) {
    for (value, change) in stream.iter_mut().flatten().zip(change.iter().flatten()) {
        *value += change;
    }
}

fn norm(rows: &[Vec<f64>], weight: &Matrix) -> Vec<Vec<f64>> {
    let normed = |x: &Vec<f64>| {
        let scale = (dot(x, x) / x.len() as f64 + EPSILON).sqrt();
        x.iter()
            .zip(&weight.values)
            .map(|(x, w)| w * x / scale)
            .collect()
    };
    rows.iter().map(normed).collect()
}

fn rotate(rows: &mut [Vec<f64>], head_size: usize) {
    for (position, row) in rows.iter_mut().enumerate() {
        for head in row.chunks_exact_mut(head_size) {
            for (pair, values) in head.chunks_exact_mut(2).enumerate() {
                let exponent = -2.0 * pair as f64 / head_size as f64;
                let (sin, cos) = (position as f64 * ROPE_BASE.powf(exponent)).sin_cos();
                let (x, y) = (values[0], values[1]);
                values[0] = x * cos - y * sin;
                values[1] = x * sin + y * cos;
            }
        }
    }
}

fn attention(tiny: &TinyModel, q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let size = tiny.head_size;
    let group = tiny.heads / tiny.kv_heads;
    let mut attended = vec![vec![0.0; tiny.heads * size]; q.len()];
    for (position, out) in attended.iter_mut().enumerate() {
        for (head, out) in out.chunks_exact_mut(size).enumerate() {
            let query = &q[position][head * size..][..size];
            let start = head / group * size;
            let scores: Vec<f64> = k[..=position]
                .iter()
                .map(|key| (dot(query, &key[start..][..size]) / (size as f64).sqrt()).exp())
                .collect();
            let sum: f64 = scores.iter().sum();
            for (score, value) in scores.iter().zip(v) {
                for (out, value) in out.iter_mut().zip(&value[start..][..size]) {
                    *out += score / sum * value;
                }
            }
        }
    }
    attended
}
