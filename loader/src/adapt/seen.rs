//! Recorder of activations.

use htc_formats::model::ActivationPoint;

use crate::backend::Backend;
use crate::error::ExecError;
use crate::exec::{Point, Session, Tap};

/// Recorded inputs of some layers and of the head.
pub(crate) struct ActivationRecorder {
    draft: LayerInputs,
    verifier: LayerInputs,
    /// `[layers, width]` per drafted token.
    steps: Vec<Vec<f32>>,
    heads: Vec<(Vec<f32>, Vec<f32>)>,
    records_head: bool,
    verifier_logits: Vec<f32>,
}

/// Attention inputs of some layers in the last batch: `[layers][rows, width]`.
pub(crate) struct LayerInputs {
    layers: Vec<usize>,
    rows: Vec<Vec<f32>>,
}

impl Tap for LayerInputs {
    fn observes(&self, point: Point) -> bool {
        !self.layers.is_empty() && point == Point::Input(ActivationPoint::Attention)
    }

    fn see(&mut self, layer: usize, _: Point, x: &[f32]) {
        if let Ok(at) = self.layers.binary_search(&layer) {
            let rows = &mut self.rows[at];
            rows.clear();
            rows.extend_from_slice(x);
        }
    }
}

impl LayerInputs {
    fn new(wanted: &[usize]) -> Self {
        LayerInputs {
            layers: wanted.to_vec(),
            rows: vec![Vec::new(); wanted.len()],
        }
    }
}

impl ActivationRecorder {
    /// Creates a recorder of these layers, in ascending order.
    pub fn new(layers: &[usize], wants_head: bool) -> Self {
        ActivationRecorder {
            draft: LayerInputs::new(layers),
            verifier: LayerInputs::new(layers),
            steps: Vec::new(),
            heads: Vec::new(),
            records_head: wants_head,
            verifier_logits: Vec::new(),
        }
    }

    pub fn draft_tap(&mut self) -> &mut LayerInputs {
        &mut self.draft
    }

    pub fn verifier_tap(&mut self) -> &mut LayerInputs {
        &mut self.verifier
    }

    /// Stores the activations of the draft's last row.
    pub fn end_step<B: Backend>(
        &mut self,
        session: &mut Session<B>,
        width: usize,
    ) -> Result<(), ExecError> {
        let last = |rows: &Vec<f32>| rows[rows.len() - width.min(rows.len())..].to_vec();
        self.steps
            .push(self.draft.rows.iter().flat_map(last).collect());
        if self.records_head {
            let mut input = Vec::new();
            session.head_input_before(&mut input)?;
            self.heads.push((input, session.last_logits()?.to_vec()));
        }
        Ok(())
    }

    /// Stores the verifier's logits at the rejected token.
    pub fn record_rejection(&mut self, logits: &[f32]) {
        if self.records_head {
            self.verifier_logits.extend_from_slice(logits);
        }
    }

    /// Returns the layer inputs of the verifier minus the draft's, `[layers, width]`.
    pub fn input_differences(&self, index: usize, width: usize) -> Vec<f32> {
        let Some(step) = self.steps.get(index) else {
            return Vec::new();
        };
        let own = self.verifier.rows.iter().zip(step.chunks_exact(width));
        own.flat_map(|(rows, draft)| {
            let row = rows.get(index * width..(index + 1) * width);
            let row = row.unwrap_or(&[]).iter().zip(draft);
            row.map(|(own, draft)| own - draft).collect::<Vec<f32>>()
        })
        .collect()
    }

    /// Returns the head's input, the draft's logits and the verifier's at a drafted token.
    pub fn take_head(&mut self, index: usize) -> Option<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let (input, logits) = self.heads.get_mut(index).map(std::mem::take)?;
        Some((input, logits, std::mem::take(&mut self.verifier_logits)))
    }
}
