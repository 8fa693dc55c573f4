//! Telling inventory of the hosts of a batch: once a batch, however often it is tried to be written.

use std::collections::{HashMap, HashSet};

use super::fold::Settled;
use crate::domain::{ClientId, Timestamp};
use crate::platform::announcer::{Announcer, Told};
use crate::platform::inventory::Host;
use crate::platform::sources::{Registrar, source_of};
use crate::tenant::Found;

/// What inventory has heard of a batch, over all the attempts to write it: the client, and which
/// event made it known.
#[derive(Default)]
pub(super) struct HeardOf {
    heard: HashMap<(ClientId, usize), Timestamp>,
    registered: HashSet<(ClientId, usize)>,
}

/// A host that has arrived, and who it is.
#[derive(Clone, Copy)]
pub(super) struct Arrived<'a> {
    pub client: &'a ClientId,
    pub settled: &'a Settled,
    pub found: &'a Found,
}

impl HeardOf {
    /// When inventory heard of what this event says of the client.
    pub fn at(&self, client: &ClientId, event: usize) -> Option<Timestamp> {
        self.heard.get(&(client.clone(), event)).copied()
    }

    /// Has those that are catalog proxies registered. What does not get through is counted there.
    pub fn register(&mut self, registrar: &Registrar, arrived: &[Arrived<'_>]) {
        for Arrived {
            client,
            settled,
            found,
        } in arrived
        {
            let online = &settled.online;
            let source = source_of(client, settled.dialect, online.kind, &online.reported);
            if let Some(source) = source
                && self.registered.insert(((*client).clone(), settled.event))
            {
                registrar.try_register(&found.identity, source, client);
            }
        }
    }

    /// Tells inventory of those that it has not heard of yet, and notes who was heard.
    pub async fn tell(
        &mut self,
        announcer: &Announcer,
        arrived: impl Iterator<Item = Arrived<'_>>,
        now: Timestamp,
    ) {
        let new: Vec<Arrived<'_>> = arrived
            .filter(|new| self.at(new.client, new.settled.event).is_none())
            .collect();
        let hosts: Vec<Host<'_>> = new
            .iter()
            .map(|arrived| Host {
                client_id: arrived.client,
                tenant: &arrived.found.tenant,
                identity: &arrived.found.identity,
                dialect: arrived.settled.dialect,
                kind: arrived.settled.online.kind,
                reported: &arrived.settled.online.reported,
            })
            .collect();
        let told = announcer.tell(&hosts, now).await;
        for (arrived, told) in new.iter().zip(told) {
            if told == Told::Delivered {
                let heard = (arrived.client.clone(), arrived.settled.event);
                self.heard.insert(heard, now);
            }
        }
    }
}
