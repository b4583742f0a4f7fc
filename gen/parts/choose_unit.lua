-- choose_unit -- each unit takes the transforms that cost least, and says so in flags.
--
-- A unit is what one fit sees whole: a group of tokens where groups run along tokens, else one
-- token.  The head is cut into equal pieces of channels, the greatest power of two up to the number
-- that divides head_dim (32 at 64, 96 and 128, 16 at 80).  With H the orthonormal Hadamard of a
-- piece, or of the head as stage transform defines it, the candidates of a unit are
--     as it is;   each piece p by H_piece, or not;   the head by H_head.
-- Each of the three bases is fitted and rounded as the other stages say, e is the row less what is
-- decoded, rotated back.  The choice is greedy, by the score of stage score:
--     piece p is rotated if the score of its own e, rotated, is less than as it is;
--     the head is, instead, if the score of its e is less than that of the pieces so chosen.
-- Flags take no space.  Piece p's is the sign bit of the scale of the piece's first group.  The
-- head's is the lowest bit of the stored zero of the unit's first group: that zero is the nearest
-- with the bit, and codes come from it as it is stored.  Where the head's is set the others are 0.
-- Reading scores a row with the copy of the query that its pieces are in: keys are not rotated
-- back.

return { stage = "choose", name = "unit", number = "piece_up_to", number_usual = 32,
         number_least = 16, number_most = 256,
         text = "each unit by score: pieces as they are or rotated, or the head",
         side = "k", copies = 3, flags = true }
