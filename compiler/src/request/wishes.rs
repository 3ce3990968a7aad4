//! What is said of a plan, and the defaults of what is not.

use htc_formats::DType;
use htc_formats::model::Slot;

use super::{
    Allocation, Allocator, Budget, DenseTypes, FirstPositions, Floor, Method, OrderArg, Request,
    TreatmentRequest,
};

/// Parameters after over before where no budget is given.
pub const DEFAULT_RATIO: f64 = 0.9;

/// How factors are stored where nothing else is asked for.
pub const DEFAULT_FACTOR_TYPE: DType = DType::Q8_0;

/// What is said of a plan; the rest has defaults, some of which depend on whether there is a
/// calibration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wishes {
    /// How slots are approximated; [`Method::PerSlot`] by default.
    pub method: Option<Method>,
    /// How much may be kept; a ratio of [`DEFAULT_RATIO`] by default, with [`Allocator::DiffPlan`] what
    /// energy decides.
    pub budget: Option<Budget>,
    /// How the budget is shared out; see [`Wishes::allocator`].
    pub allocator: Option<Allocator>,
    /// The smallest rank of a factorised slot.
    pub floor: Option<Floor>,
    /// The largest rank of a factorised slot.
    pub cap: Option<usize>,
    /// What the variance is of that some allocators read; [`FirstPositions::LeftOut`] by default.
    pub first_positions: FirstPositions,
    /// Slots to compress; empty for those of the method.
    pub slots: Vec<Slot>,
    /// How factors are stored; [`DEFAULT_FACTOR_TYPE`] by default.
    pub factor_type: Option<DType>,
    /// How dense matrices are stored; as in the source by default.
    pub dense: DenseTypes,
    /// Whether the model is stored in another order; see [`Request::order`].
    pub order: Option<OrderArg>,
    /// How weights are to be treated.
    pub treatment: TreatmentRequest,
}

impl Wishes {
    /// The allocator asked for, or the default: with a calibration what measures best with the
    /// method, where there is anything to share out.
    pub fn allocator(&self, calibrated: bool) -> Allocator {
        let fixed = matches!(self.budget, Some(Budget::Rank(_) | Budget::FullRank));
        let default = match (calibrated && !fixed, self.method()) {
            (false, _) => Allocator::Uniform,
            (true, Method::PerSlot) => Allocator::Whitened,
            (true, Method::Quantise) => Allocator::Uniform,
            (true, Method::SharedBasis) => Allocator::Waterfill,
        };
        self.allocator.unwrap_or(default)
    }

    /// The request, with a calibration or without. Slots come in the order of execution, each once.
    pub fn request(&self, calibrated: bool) -> Request {
        let method = self.method();
        let mut slots = match &self.slots[..] {
            [] => method.default_slots().to_vec(),
            named => named.to_vec(),
        };
        slots.sort();
        slots.dedup();
        let allocator = self.allocator(calibrated);
        let default = match allocator {
            Allocator::DiffPlan => Budget::Energy,
            _ => Budget::Ratio(DEFAULT_RATIO),
        };
        Request {
            method,
            budget: self.budget.unwrap_or(default),
            allocation: Allocation {
                allocator,
                floor: self.floor,
                cap: self.cap,
                first_positions: self.first_positions,
            },
            slots,
            factor_type: self.factor_type.unwrap_or(DEFAULT_FACTOR_TYPE),
            dense: self.dense,
            order: self.order,
            treatment: self.treatment,
        }
    }

    fn method(&self) -> Method {
        self.method.unwrap_or(Method::PerSlot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_depend_on_the_method_and_the_calibration() {
        let plain = Wishes::default().request(false);
        assert_eq!(plain.method, Method::PerSlot);
        assert_eq!(plain.budget, Budget::Ratio(DEFAULT_RATIO));
        assert_eq!(plain.allocation, Allocation::default());
        assert_eq!(plain.slots, Slot::ALL);
        let calibrated = Wishes::default().request(true);
        assert_eq!(calibrated.allocation.allocator, Allocator::Whitened);
        let shared = Wishes {
            method: Some(Method::SharedBasis),
            ..Wishes::default()
        };
        assert_eq!(shared.allocator(true), Allocator::Waterfill);
        // A rank leaves nothing to share out.
        let fixed = Wishes {
            budget: Some(Budget::Rank(4)),
            ..shared
        };
        assert_eq!(fixed.allocator(true), Allocator::Uniform);
    }

    #[test]
    fn slots_come_once_and_in_order() {
        let wishes = Wishes {
            slots: vec![Slot::Up, Slot::Q, Slot::Up],
            ..Wishes::default()
        };
        assert_eq!(wishes.request(false).slots, [Slot::Q, Slot::Up]);
    }
}
