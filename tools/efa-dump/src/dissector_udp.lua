
-- Datagrams of the UDP link. What a system captures before it has cut it holds several.
local link = Proto("efa_udp", "Software EFA device over UDP")
local kinds = { "FRAG", "CHUNK", "ACK", "PROBE", "HELLO", "HELLO_ACK", "RESET", "BYE", "PATH", "PATH_OK", "PIECE",
  [0x40] = "SEALED", [0x41] = "AUTH_HELLO", [0x42] = "AUTH_COOKIE", [0x43] = "AUTH_REQUEST", [0x44] = "AUTH_ACCEPT", [0x45] = "AUTH_UNKNOWN",
  [0x46] = "OPENED" }
local link_ops = { "SEND", "WRITE", "READ", "READ_DATA", "VERDICTS" }
local u = {
  kind = ProtoField.uint8("efa_udp.kind", "kind", base.DEC, kinds),
  due = ProtoField.bool("efa_udp.ack_due", "acknowledgement due", 8, nil, 1),
  abort = ProtoField.bool("efa_udp.abort", "fragment given up", 8, nil, 2),
  repeated = ProtoField.bool("efa_udp.repeated", "a segment came again", 8, nil, 4),
  again = ProtoField.bool("efa_udp.again", "sent again", 8, nil, 8),
  spurious = ProtoField.uint16("efa_udp.spurious", "spurious retransmissions", base.DEC),
  dst = ProtoField.uint32("efa_udp.dst", "connection at the receiver", base.HEX),
  src = ProtoField.uint32("efa_udp.src", "connection at the sender", base.HEX),
  seq = ProtoField.uint32("efa_udp.seq", "sequence number", base.DEC),
  ack = ProtoField.uint32("efa_udp.ack", "acknowledgement", base.DEC),
  sack = ProtoField.uint64("efa_udp.sack", "selective acknowledgement", base.HEX),
  len = ProtoField.uint16("efa_udp.len", "payload length", base.DEC),
  check = ProtoField.uint32("efa_udp.check", "checksum", base.HEX),
  frag = ProtoField.uint32("efa_udp.frag", "fragment", base.DEC),
  total = ProtoField.uint32("efa_udp.total", "bytes of the fragment", base.DEC),
  offset = ProtoField.uint32("efa_udp.offset", "offset", base.DEC),
  op = ProtoField.uint8("efa_udp.op", "operation", base.DEC, link_ops),
  src_qpn = ProtoField.uint16("efa_udp.src_qpn", "source queue pair", base.DEC),
  dst_qpn = ProtoField.uint16("efa_udp.dst_qpn", "destination queue pair", base.DEC),
  token = ProtoField.uint32("efa_udp.token", "request", base.HEX),
  session = ProtoField.uint32("efa_udp.session", "session", base.HEX),
  number = ProtoField.uint64("efa_udp.number", "datagram of the session", base.DEC),
}
local link_fields = {}
for _, one in pairs(u) do link_fields[#link_fields + 1] = one end
link.fields = link_fields

local HEADER, OP_HEAD = 28, 32
local extra = { OP_HEAD, 12 + OP_HEAD, 0, 0, 36, 36, 0, 0, 0, 0, 12 }
-- Clear header of a sealed datagram; before an opened one in captures of the device.
local CLEAR, OPENED = 16, 0x46

-- Zeros behind a chunk, of its flags.
local function zeros_behind(flags) return math.floor(flags / 16) end

-- Bytes of the datagram at `at`; nil if none is there.
local function whole_len(buf, at)
  if buf:len() < at + HEADER or buf(at, 1):uint() ~= 1 then return nil end
  local kind = buf(at + 1, 1):uint()
  if not extra[kind] then return nil end
  local words = kind == 3 and buf(at + 3, 1):uint() * 8 or 0
  local padding = kind == 2 and zeros_behind(buf(at + 2, 1):uint()) or 0
  local len = HEADER + extra[kind] + words + buf(at + 20, 2):le_uint() + padding
  return at + len <= buf:len() and len or nil
end

local function is_sealed(buf)
  local kind = buf:len() >= 32 and buf(0, 1):uint() or 0
  return kind >= 0x40 and kind <= 0x45 and buf(1, 1):uint() == 1 and buf(2, 2):uint() == 0
end

local function is_opened(buf)
  return buf:len() >= CLEAR + HEADER and buf(0, 1):uint() == OPENED and buf(1, 1):uint() == 1 and whole_len(buf, CLEAR) ~= nil
end

local function op_head(buf, tree)
  tree:add(u.op, buf(0, 1))
  tree:add_le(u.src_qpn, buf(2, 2))
  tree:add_le(u.dst_qpn, buf(4, 2))
  tree:add_le(u.token, buf(12, 4))
  return link_ops[buf(0, 1):uint()] or "?"
end

local function datagram(buf, root)
  local kind = buf(1, 1):uint()
  local seq, ack = buf(12, 4):le_uint(), buf(16, 4):le_uint()
  local tree = root:add(link, buf)
  tree:add(u.kind, buf(1, 1))
  for _, flag in ipairs({ u.due, u.abort, u.repeated, u.again }) do tree:add(flag, buf(2, 1)) end
  tree:add_le(u.dst, buf(4, 4))
  tree:add_le(u.src, buf(8, 4))
  tree:add_le(u.seq, buf(12, 4))
  tree:add_le(u.ack, buf(16, 4))
  tree:add_le(u.len, buf(20, 2))
  tree:add_le(u.spurious, buf(22, 2))
  tree:add_le(u.check, buf(24, 4))
  local text = string.format("%s seq %u ack %u", kinds[kind], seq, ack)
  local at = HEADER
  if kind == 2 then
    tree:add_le(u.frag, buf(at, 4))
    tree:add_le(u.total, buf(at + 4, 4))
    tree:add_le(u.offset, buf(at + 8, 4))
    text = string.format("%s at %u of %u", text, buf(at + 8, 4):le_uint(), buf(at + 4, 4):le_uint())
    at = at + 12
  end
  if kind <= 2 then text = text .. " " .. op_head(buf(at, OP_HEAD):tvb(), tree) end
  if kind == 3 then
    for word = 0, buf(3, 1):uint() - 1 do tree:add_le(u.sack, buf(at + 8 * word, 8)) end
  end
  tree:append_text(", " .. text)
  return text
end

function link.dissector(buf, pinfo, root)
  local at, texts = 0, {}
  if is_sealed(buf) then
    local tree = root:add(link, buf())
    tree:add(u.kind, buf(0, 1))
    tree:add_le(u.session, buf(4, 4))
    tree:add_le(u.number, buf(8, 8))
    texts[1], at = kinds[buf(0, 1):uint()], buf:len()
  elseif is_opened(buf) then
    local tree = root:add(link, buf(0, CLEAR))
    tree:add(u.kind, buf(0, 1))
    tree:add_le(u.session, buf(4, 4))
    tree:add_le(u.number, buf(8, 8))
    at = CLEAR
  end
  while true do
    local len = whole_len(buf, at)
    if not len then break end
    texts[#texts + 1] = datagram(buf(at, len):tvb(), root)
    at = at + len
  end
  if at == 0 then return 0 end
  pinfo.cols.protocol = "EFA_UDP"
  pinfo.cols.info = table.concat(texts, "; ", 1, math.min(#texts, 3)) .. (#texts > 3 and " ..." or "")
  return at
end

link:register_heuristic("udp", function(buf, pinfo, root)
  if not is_sealed(buf) and not is_opened(buf) and not whole_len(buf, 0) then return false end
  link.dissector(buf, pinfo, root)
  return true
end)
