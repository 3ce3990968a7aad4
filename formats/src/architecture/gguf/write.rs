//! Writes hyper-parameters as GGUF metadata.
//!
//! Values that metadata cannot express are refused, since llama.cpp would compute something else.

use crate::architecture::BindError;
use crate::architecture::error::Result;
use crate::architecture::names::architecture;
use crate::architecture::{Architecture, Sliding};
use crate::gguf::{Array, Value};
use crate::model::{HyperParameters, RopePairs, SlidingWindow};

/// Returns the rotary pairs, and so the row order of queries and keys, in GGUF files of an
/// architecture.
///
/// # Errors
/// [`BindError::Architecture`].
pub fn gguf_rope_pairs(hyper: &HyperParameters) -> Result<RopePairs> {
    Ok(architecture(hyper)?.traits.gguf_rope_pairs)
}

/// Returns the metadata entries of a model's hyper-parameters. [`RopePairs`] follow from the
/// architecture (see [`gguf_rope_pairs`]); factors of rotary frequencies are tensors.
///
/// # Errors
/// [`BindError`] for a value that GGUF cannot store or llama.cpp ignores.
pub fn gguf_metadata(hyper: &HyperParameters) -> Result<Vec<(String, Value)>> {
    let architecture = architecture(hyper)?;
    check_implied(hyper, architecture)?;
    let mut entries = vec![
        (
            "general.architecture".to_owned(),
            Value::String(architecture.name.to_owned()),
        ),
        ("general.type".to_owned(), Value::String("model".to_owned())),
    ];
    if let Some(name) = &hyper.name {
        entries.push(("general.name".to_owned(), Value::String(name.clone())));
    }
    // Lossless: all counts are bounded by limits far below.
    let count = |n: usize| Value::U32(n as u32);
    let mut put = |key: &str, value| entries.push((format!("{}.{key}", architecture.name), value));
    put("vocab_size", count(hyper.vocabulary));
    put("context_length", count(hyper.context));
    put("embedding_length", count(hyper.width));
    put("block_count", count(hyper.layers));
    put("feed_forward_length", count(hyper.ffn));
    put("attention.head_count", count(hyper.heads));
    put("attention.head_count_kv", count(hyper.kv_heads));
    put("attention.key_length", count(hyper.head_size));
    put("attention.value_length", count(hyper.head_size));
    put(
        "attention.layer_norm_rms_epsilon",
        Value::F32(hyper.norm_epsilon),
    );
    put("rope.freq_base", Value::F32(hyper.rope_theta));
    put("rope.dimension_count", count(hyper.rope_dimensions));
    if hyper.rope_linear_scale != 1.0 {
        put("rope.scaling.type", Value::String("linear".to_owned()));
        put("rope.scaling.factor", Value::F32(hyper.rope_linear_scale));
    }
    let forward = &hyper.forward;
    if let Some(long) = forward.long_rope {
        // No scaling type: like llama.cpp's converter, the tensors of factors imply it.
        put(
            "rope.scaling.original_context_length",
            count(long.original_context),
        );
        put(
            "rope.scaling.attn_factor",
            Value::F32(long.attention_factor),
        );
    }
    for (key, cap) in [
        ("attn_logit_softcapping", forward.attention_softcap),
        ("final_logit_softcapping", forward.logit_softcap),
    ] {
        if let Some(cap) = cap {
            put(key, Value::F32(cap));
        }
    }
    if let Some(experts) = forward.experts {
        put("expert_count", count(experts.count));
        put("expert_used_count", count(experts.used));
        put("expert_feed_forward_length", count(experts.ffn));
    }
    for (key, value) in window(hyper, architecture)? {
        put(key, value);
    }
    Ok(entries)
}

fn inexpressible(
    architecture: &Architecture,
    what: &'static str,
    found: String,
    expected: String,
) -> BindError {
    BindError::Inexpressible {
        what,
        found,
        architecture: architecture.name,
        container: "GGUF",
        expected,
    }
}

/// Checks values without an entry against those that the architecture implies.
fn check_implied(hyper: &HyperParameters, architecture: &Architecture) -> Result<()> {
    let (forward, traits) = (&hyper.forward, &architecture.traits);
    let refuse = |what, found, expected| Err(inexpressible(architecture, what, found, expected));
    if forward.activation != traits.activation {
        let (found, expected) = (forward.activation, traits.activation);
        return refuse(
            "the activation",
            format!("{found:?}"),
            format!("{expected:?}"),
        );
    }
    let number = |x: Option<f32>, default: &str| x.map_or(default.to_owned(), |x| x.to_string());
    let (one, plain) = ("1", "1 / sqrt(head size)");
    let expected = traits.embedding_scale.factor(hyper.width);
    if forward.embedding_scale != expected {
        let found = number(forward.embedding_scale, one);
        return refuse("the factor of embeddings", found, number(expected, one));
    }
    let expected = traits.attention_scale(hyper.layers, hyper.width, hyper.heads);
    if forward.attention_scale != expected {
        let found = number(forward.attention_scale, plain);
        return refuse("the scale of attention", found, number(expected, plain));
    }
    // llama.cpp caps attention only where it has a default.
    for (what, cap, default, known) in [
        (
            "the cap of attention",
            forward.attention_softcap,
            traits.attention_softcap,
            traits.attention_softcap.is_some(),
        ),
        (
            "the cap of logits",
            forward.logit_softcap,
            traits.logit_softcap,
            traits.caps_logits,
        ),
    ] {
        match (cap, default) {
            (Some(cap), _) if !known => return refuse(what, cap.to_string(), "none".to_owned()),
            (None, Some(_)) => return refuse(what, "none".to_owned(), "a number".to_owned()),
            _ => {}
        }
    }
    if let Some(experts) = forward.experts
        && experts.normalised != traits.normalises_experts
    {
        let [found, expected] = [experts.normalised, traits.normalises_experts];
        let what = "the normalisation of the experts' weights";
        return refuse(what, found.to_string(), expected.to_string());
    }
    if hyper.rope_linear_scale != 1.0 && forward.long_rope.is_some() {
        let found = "both linear and LongRoPE".to_owned();
        return refuse("the scaling of positions", found, "one of them".to_owned());
    }
    Ok(())
}

fn window(
    hyper: &HyperParameters,
    architecture: &Architecture,
) -> Result<Vec<(&'static str, Value)>> {
    let traits = &architecture.traits;
    let positions = "attention.sliding_window";
    let Some(window) = &hyper.forward.sliding_window else {
        // An absent entry means the architecture's window, 0 none.
        let has_default = matches!(
            traits.sliding,
            Sliding::AllBut {
                positions: Some(_),
                ..
            }
        );
        return Ok(if has_default {
            vec![(positions, Value::U32(0))]
        } else {
            Vec::new()
        });
    };
    let SlidingWindow {
        positions: width,
        full_layers,
        rope_theta,
    } = window;
    // Lossless: bounded by the limit of a context.
    let mut entries = vec![(positions, Value::U32(*width as u32))];
    // Programs that ignore the list use the architecture's pattern.
    if *full_layers != traits.sliding.full_layers(hyper.layers, None) {
        let slides = (0..hyper.layers).map(|layer| full_layers.binary_search(&layer).is_err());
        entries.push((
            "attention.sliding_window_pattern",
            Value::Array(Array::Bool(slides.collect())),
        ));
    }
    match (rope_theta, traits.sliding_rope_theta) {
        (Some(theta), _) => entries.push(("rope.freq_base_swa", Value::F32(*theta))),
        (None, None) => {}
        (None, Some(_)) => {
            return Err(inexpressible(
                architecture,
                "the rotary base of layers with a window",
                "that of the others".to_owned(),
                "one of their own".to_owned(),
            ));
        }
    }
    Ok(entries)
}
