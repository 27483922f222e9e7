//! The volume as the initiator sees it.
