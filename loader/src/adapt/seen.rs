//! What is looked at while a draft is made and checked.

use htc_formats::model::Site;

use crate::backend::Backend;
use crate::error::ExecError;
use crate::exec::{Point, Session, Tap};

/// The inputs of some layers, and what the head read.
pub(crate) struct Seen {
    /// Of the draft, token by token, and of the model, all of them at once.
    draft: Layers,
    verifier: Layers,
    /// Of every drafted token, the layers' inputs one after the other `[layers, width]`.
    steps: Vec<Vec<f32>>,
    /// What the head read and the logits `[vocabulary]`, of every drafted token; where they are wanted.
    heads: Vec<(Vec<f32>, Vec<f32>)>,
    wants_head: bool,
    /// The model's logits where it did not agree.
    own: Vec<f32>,
}

/// The inputs of the attention of some layers, of the batch that was read last: `[layers][rows, width]`.
pub(crate) struct Layers {
    wanted: Vec<usize>,
    rows: Vec<Vec<f32>>,
}

impl Tap for Layers {
    fn wants(&self, point: Point) -> bool {
        !self.wanted.is_empty() && point == Point::Input(Site::Attention)
    }

    fn see(&mut self, layer: usize, _: Point, x: &[f32]) {
        if let Ok(at) = self.wanted.binary_search(&layer) {
            let rows = &mut self.rows[at];
            rows.clear();
            rows.extend_from_slice(x);
        }
    }
}

impl Layers {
    fn new(wanted: &[usize]) -> Self {
        Layers {
            wanted: wanted.to_vec(),
            rows: vec![Vec::new(); wanted.len()],
        }
    }
}

impl Seen {
    /// Looks at these layers, in ascending order, and at the head where it is wanted.
    pub fn new(layers: &[usize], wants_head: bool) -> Self {
        Seen {
            draft: Layers::new(layers),
            verifier: Layers::new(layers),
            steps: Vec::new(),
            heads: Vec::new(),
            wants_head,
            own: Vec::new(),
        }
    }

    /// What looks at the draft.
    pub fn draft(&mut self) -> &mut Layers {
        &mut self.draft
    }

    /// What looks at the model.
    pub fn verifier(&mut self) -> &mut Layers {
        &mut self.verifier
    }

    /// Keeps what was seen of the draft's last row, behind which the next token is drafted.
    pub fn end_step<B: Backend>(
        &mut self,
        session: &mut Session<B>,
        width: usize,
    ) -> Result<(), ExecError> {
        let last = |rows: &Vec<f32>| rows[rows.len() - width.min(rows.len())..].to_vec();
        self.steps
            .push(self.draft.rows.iter().flat_map(last).collect());
        if self.wants_head {
            let mut input = Vec::new();
            session.head_input_before(&mut input)?;
            self.heads.push((input, session.last_logits()?.to_vec()));
        }
        Ok(())
    }

    /// Keeps the model's logits of the row behind which it wanted another token.
    pub fn rejected(&mut self, logits: &[f32]) {
        if self.wants_head {
            self.own.extend_from_slice(logits);
        }
    }

    /// What the layers read of the drafted token of this index less in the draft than in the model, `[layers, width]`.
    pub fn differences(&self, index: usize, width: usize) -> Vec<f32> {
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

    /// What the head read of the drafted token of this index, the draft's logits behind it and the model's.
    pub fn head(&mut self, index: usize) -> Option<(Vec<f32>, Vec<f32>, Vec<f32>)> {
        let (input, logits) = self.heads.get_mut(index).map(std::mem::take)?;
        Some((input, logits, std::mem::take(&mut self.own)))
    }
}
