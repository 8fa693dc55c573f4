//! Tells clients that their handshake was not taken, and why.

use std::sync::Arc;

use tokio::sync::mpsc;
use uuid::Uuid;

use super::{Outlet, OutletError};
use crate::domain::Clock;
use crate::protocol::{ClientTopic, Refusal, Topics, handshake};
use crate::shutdown::Stopper;

/// Publishes what comes out of `refusals`, until `stopper` asks. One that does not get through is
/// dropped: the client hears nothing, and tries again later.
pub async fn tell_refusals(
    mut refusals: mpsc::Receiver<(ClientTopic, Refusal)>,
    outlet: Arc<dyn Outlet>,
    topics: Topics,
    clock: Arc<dyn Clock>,
    stopper: Stopper,
) {
    loop {
        let next = tokio::select! {
            next = refusals.recv() => next,
            () = stopper.asked() => return,
        };
        let Some((topic, refusal)) = next else {
            return;
        };
        let payload = handshake::encode_refusal(&refusal, Uuid::new_v4(), clock.now());
        let client = &topic.client;
        let told = outlet.publish(client, topics.name(&topic), payload).await;
        match told {
            Ok(()) | Err(OutletError::NotConnected) => {}
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "handshake-error not delivered");
            }
        }
    }
}
