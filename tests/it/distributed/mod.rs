//! The distributed set-up on real services.

mod acl;
mod adoption;
mod doctor;
mod end_to_end;
mod rebalance;
mod restarts;
mod secured;
