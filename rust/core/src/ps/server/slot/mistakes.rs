//! What a slot would be if a rule were broken: the simulator calls these at the moment, and has to find out.
use super::{Slot, Told};
use crate::ps::protocol::stamps::Stamps;

impl Slot {
    /// Say "held" of what no other server may have (against rule R4).
    pub fn forget_pending(&mut self) {
        self.pending.clear();
    }

    /// Take what was sent to the backup for accepted (against rule R4).
    pub fn trust_backup(&mut self, told: &mut Vec<Told>) {
        let backup = self.entry.and_then(|entry| entry.backup);
        let version = self.data.as_ref().map_or(0, |data| data.version);
        for one in &mut self.required {
            if Some(one.server) == backup {
                one.accepted = one.accepted.max(Some(version));
            }
        }
        self.settle(told);
    }

    /// Answer without a receiver that has not acknowledged the copy's end (against rule R14).
    pub fn pass_over_receiver(&mut self, told: &mut Vec<Told>) {
        let to = self.copying.as_ref().filter(|copying| !copying.is_ready);
        let to = to.map(|copying| copying.to);
        if let Some(at) = self.required.iter().position(|one| Some(one.server) == to) {
            let receiver = self.required.remove(at);
            self.settle(told);
            self.required.insert(at, receiver);
        }
    }

    /// Apply pushes until the end of a hand-over (against rule R17).
    pub fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// Have the rows of a copy without the memory of stamps (against rule R13).
    pub fn forget_stamps(&mut self) {
        if let Some(data) = &mut self.data {
            data.stamps = Stamps::default();
        }
    }
}
