"""Chats: sending messages, generating replies, branches, drafts, files.

A message from Send to paint: `page` -> `controller` -> `generation` -> (link) -> `conversation` ->
`presenter` -> `widgets.chat.transcript`. Its data: `conversation`, `figures`, `reply_data`,
`attachments`, `sampling`. Saving: `saving`, `library`. Files: `files`, `markdown`,
`file_actions`. The page: `page`, `panes`, `presenter`, `labels`, `draft`, `popovers`.
"""
